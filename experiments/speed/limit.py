"""The products that a piece of work needs: over the machine's product rate, the least it can take.

A multiplication and an addition count as two operations. All else (softmax, norms, dropout, the
optimizer, the choice of tokens) counts as nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.configs.default import Config

# The products whose rate stands for the machine's, (m, k, n): those of the forward pass of `base`,
# of attention, of the feed-forward layer, and the logits.
PRODUCTS = ((1024, 512, 512), (1024, 512, 2048), (1024, 2048, 512), (1024, 512, 8192))


def operations(config: Config, work: str, arguments: Mapping[str, Any]) -> float | None:
    """Those of doing a work once; None where they are not counted."""
    if work == "step":
        return step(config)
    if work == "decode":
        return decode(config, **arguments)
    return None


def step(config: Config) -> float:
    """Operations of a training step: the backward pass has two products for each of the forward."""
    data = config.data
    length = data.row_target_length
    source = 0 if config.model.architecture == "decoder_only" else data.row_source_length
    return (
        3
        * data.batch_size
        * (_encoder(config, source) + _decoder(config, length, length, source, encoded=source))
    )


def decode(config: Config, tokens: int) -> float:
    """Operations of decoding so many tokens after each prompt of a batch.

    A place attends to itself and to what is before it.
    """
    data = config.data
    if config.model.architecture == "decoder_only":
        prompt = data.max_target_length
        places = prompt + tokens
        return data.batch_size * (
            _decoder(config, places, (places + 1) / 2, 0, encoded=0) - _logits(config, prompt)
        )
    beams = config.decode.beam_size if config.decode.method == "beam" else 1
    source = data.max_source_length
    beam = _decoder(config, tokens, (tokens + 1) / 2, source, encoded=source / beams)
    return data.batch_size * (_encoder(config, source) + beams * beam)


def products(shapes: Sequence[tuple[int, int, int]]) -> float:
    """Operations of products (m, k) x (k, n)."""
    return sum(2.0 * m * k * n for m, k, n in shapes)


def _encoder(config: Config, tokens: float) -> float:
    """Operations for one row of so many tokens."""
    model = config.model
    layer = tokens * (8 * model.d_model**2 + _feed_forward(config)) + _mixing(
        config, tokens, tokens
    )
    return model.num_layers * layer


def _decoder(
    config: Config, tokens: float, attended: float, source: float, *, encoded: float
) -> float:
    """Operations for one row of so many tokens, logits included.

    attended: keys that a token attends to, mean over tokens.
    source: tokens of the source, 0 for none; encoded: those of which keys and values are made.
    """
    model = config.model
    layer = tokens * (8 * model.d_model**2 + _feed_forward(config))
    layer += _mixing(config, tokens, attended)
    if source:
        layer += 4 * model.d_model**2 * (tokens + encoded) + _mixing(config, tokens, source)
    return model.num_layers * layer + _logits(config, tokens)


def _feed_forward(config: Config) -> float:
    return 4 * config.model.d_model * config.model.d_ff


def _mixing(config: Config, queries: float, keys: float) -> float:
    """Products of queries and keys, and of weights and values."""
    return 4 * queries * keys * config.model.d_model


def _logits(config: Config, tokens: float) -> float:
    return 2 * tokens * config.model.d_model * config.model.vocab_size
