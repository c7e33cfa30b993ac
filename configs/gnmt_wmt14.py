"""WMT 2014, English to German, by GNMT (Wu et al. 2016, 1609.08144): 8 + 8 layers of LSTMs of 1024.

    ./launch.sh train --config=configs/gnmt_wmt14.py --workdir=runs/gnmt_wmt14

Sizes, vocabulary (32,000), dropout, clipping and the first 60,000 steps of training (Adam at 2e-4)
are those of the paper. Its second phase, SGD with a halved rate, is a linear decay here, and a step
has 256 packed rows where the paper has 128 sentences. Searches have no coverage penalty. The paper
reports 24.6 BLEU on newstest2014 (tokenised).

For a TPU v5e-8. Not run yet: no time, no score. Preflight (22 November 2026, libtpu 0.0.42): a
training step needs 12.12 of 15.75 GiB per chip and takes at least 61.2 ms, at 44% of all FLOPs.
Real ones take longer, as a scan over time waits for each of its steps.
"""

from transformer_jax.configs import default, wmt14_en_de_base


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = wmt14_en_de_base.get_config(arg)
    config.data.tokenizer.vocab_size = 32_000
    config.data.max_source_length = 128
    config.data.max_target_length = 128
    config.data.row_source_length = 128
    config.data.row_target_length = 128
    config.data.batch_size = 256

    config.model.family = "recurrent"
    config.model.recurrence = "gnmt"
    config.model.num_layers = 8
    config.model.d_model = 1024
    config.model.vocab_size = 32_000
    config.model.tied_embeddings = "none"
    config.model.dropout_rate = 0.2
    config.model.embedding_dropout_rate = 0.2
    config.model.dtype = "bfloat16"

    config.task.label_smoothing = 0.0
    config.optimizer.schedule = "warmup_stable_decay"
    config.optimizer.learning_rate = 2e-4
    config.optimizer.warmup_steps = 1000
    config.optimizer.decay_steps = 30_000
    config.optimizer.beta2 = 0.999
    config.optimizer.epsilon = 1e-8
    config.optimizer.clip_norm = 5.0

    config.mesh.topology = "v5e-8"
    config.mesh.data = -1

    config.train.steps = 90_000
    config.decode.length_penalty = 0.2
    return config
