"""WikiText-2 (Merity et al. 2016): a language model of subwords, scored by its perplexity per word.

    ./launch.sh train --config=configs/wikitext2.py --workdir=runs/wikitext2 \\
        --config.data.dir=FOLDER_OF_WIKITEXT2

FOLDER_OF_WIKITEXT2 holds `train.txt`, `valid.txt` and `test.txt`, plain or .gz, with <unk>. Each
file is one text, cut into rows.

Not run yet: no time, no score.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "text"
    config.data.document_separator = ""
    config.data.train = ("train.txt",)
    config.data.validation = ("valid.txt",)
    config.data.test = ("test.txt",)
    config.data.tokenizer.kind = "bpe"
    config.data.tokenizer.vocab_size = 8000
    config.data.max_target_length = 256
    config.data.row_target_length = 256
    config.data.packing = False
    config.data.batch_size = 16

    config.model.architecture = "decoder_only"
    config.model.residual = "pre_ln"
    config.model.num_layers = 4
    config.model.d_model = 256
    config.model.num_heads = 8
    config.model.d_ff = 1024
    config.model.activation = "gelu"
    config.model.positions = "rotary"
    config.model.dropout_rate = 0.2
    config.model.embedding_dropout_rate = 0.2

    config.task.label_smoothing = 0.0
    config.optimizer.name = "muon"
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup_steps = 100
    config.optimizer.weight_decay = 0.1
    config.optimizer.clip_norm = 1.0

    config.train.steps = 2500
    config.train.evaluate_every = 500
    config.checkpoint.every = 500
    config.checkpoint.keep_last = 2
    config.decode.method = "sample"
    return config
