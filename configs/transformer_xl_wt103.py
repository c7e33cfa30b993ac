"""WikiText-103, word by word, by the base model of Transformer-XL (Dai et al. 2019, section 4.1,
and its code): 16 layers, d_model 410, segments and memory of 150 words.

    ./launch.sh train --config=configs/transformer_xl_wt103.py --workdir=runs/transformer_xl \\
        --config.data.dir=FOLDER

FOLDER holds `wiki.train.tokens`, `wiki.valid.tokens` and `wiki.test.tokens`, with <unk>. Each file
is one text, as in the paper's code. The paper reports a perplexity of 24.0, with a memory of 640
words when it is scored, in which distances beyond 400 count as 400.

It differs from the paper's in a softmax over all words, where theirs is adaptive; in draws (Xavier)
and biases; and in that nothing is dropped of the vectors of distances. The readers of an evaluation
are 32, not 10.

For a TPU v5e-4. Not run yet: no time, no score. Preflight (22 November 2026, libtpu 0.0.42): a
training step needs 5.44 of 15.75 GiB per chip and takes at least 45.2 ms, at 24% of all FLOPs: it
waits for memory. The model has 151 million parameters, as published.
"""

from transformer_jax.configs import default


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = default.get_config(arg)

    config.data.source = "text"
    config.data.document_separator = ""
    config.data.train = ("wiki.train.tokens",)
    config.data.validation = ("wiki.valid.tokens",)
    config.data.test = ("wiki.test.tokens",)
    config.data.tokenizer.kind = "words"
    config.data.tokenizer.vocab_size = 267_776  # 267,735 words, and special ones
    config.data.tokenizer.train_bytes = 1_000_000_000  # all of it
    config.data.max_target_length = 150
    config.data.packing = False
    config.data.batch_size = 60
    config.data.streams = 4

    config.model.architecture = "decoder_only"
    config.model.vocab_size = 267_776
    config.model.num_layers = 16
    config.model.d_model = 410
    config.model.num_heads = 10
    config.model.d_ff = 2100
    config.model.positions = "distance"
    config.model.memory_length = 150
    config.model.max_distance = 400  # more than training has
    config.model.dtype = "bfloat16"

    config.mesh.topology = "v5e-4"

    config.task.label_smoothing = 0.0
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.warmup_steps = 0
    config.optimizer.beta2 = 0.999
    config.optimizer.epsilon = 1e-8
    config.optimizer.clip_norm = 0.25

    config.train.steps = 200_000
    config.train.evaluate_every = 4000
    config.checkpoint.every = 4000
    config.evaluate.batch_size = 32
    config.evaluate.memory_length = 640
    config.decode.method = "sample"
    return config
