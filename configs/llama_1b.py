"""Llama 3.2 1B: 1.24 billion parameters, trained on texts of 8,192 tokens.

    ./launch.sh train --config=configs/llama_1b.py --workdir=runs/llama_1b

The model of configs/llama3_8b.py, smaller, with one matrix for embedding and logits. Differences
from Llama 3.2: the rotary angles are those of Llama 3, without the factors for texts of up to
131,072 tokens; nothing is distilled from larger models; and those of configs/llama3_8b.py. A step
has 524,288 tokens, in 4 micro-batches of 16 rows.

For a TPU v5e-16. Not run yet: no time, no score. Preflight (22 November 2026, libtpu 0.0.42): a
training step needs 13.87 of 15.75 GiB per chip and takes at least 2.24 s, at 79% of all FLOPs;
decoding 16 prompts of 8,192 tokens needs 9.20 GiB.
"""

from transformer_jax.configs import default, llama3_8b


def get_config(arg: str = "") -> default.Config:
    """Returns the config; it takes no argument."""
    config = llama3_8b.get_config(arg)
    config.data.batch_size = 64

    config.model.num_layers = 16
    config.model.d_model = 2048
    config.model.d_ff = 8192
    config.model.tied_embeddings = "all"

    config.mesh.topology = "v5e-16"
    config.mesh.tensor = 1
    config.train.accumulation_steps = 4
    config.evaluate.batch_size = 16
    return config
