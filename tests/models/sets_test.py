"""Models that tell a set, against a slow forward pass: queries, and positions in attention."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.defaults import loss_settings
from tests.models import reference, tiny
from transformer_jax.models.family import with_memory
from transformer_jax.training import detection
from transformer_jax.training.losses import Loss

SIZES = dict(architecture="encoder_set", num_encoder_layers=1, num_decoder_layers=2)
# A scheme of each kind of sublayer, and the one with a second stream
EQUATIONS = {equation: name for name, equation in reversed(reference.SUBLAYERS.items())}
EQUATIONS = [*EQUATIONS.values(), "residual_dual"]
WHERE = (
    dict(positions_in="attention"),
    dict(positions_in="attention", positions="learned"),
    dict(positions_in="stream", positions="learned", embedding_norm=True),
)


def batch():
    """Images of tokens, one a row, of different lengths."""
    return tiny.pack([[pair] for pair in tiny.sentences((4, 1), (9, 3), (6, 2))], target_length=3)


@pytest.mark.parametrize(
    ("residual", "where"),
    tiny.every_second_long(zip(tiny.SCHEMES, itertools.cycle(WHERE), strict=False)),
)
def test_boxes_equal_those_of_a_slow_forward_pass(residual, where):
    """Of every layer; images of the batch do not see each other, nor padding."""
    config = tiny.config(residual, **SIZES, **where)
    params = tiny.random_parameters(config, deviation=0.2)
    apply = jax.jit(functools.partial(tiny.model(config).apply, deterministic=True))
    outputs = apply({"params": params}, tiny.read_by(config, batch()))
    expected = reference.tell(params, batch(), config)
    assert outputs.logits.shape == (2, 3, config.num_queries, config.num_labels + 1)
    for layer, images in enumerate(expected):
        for image, (logits, boxes) in enumerate(images):
            close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
            close(outputs.logits[layer, image], logits)
            close(outputs.boxes[layer, image], boxes)


@pytest.mark.parametrize("residual", EQUATIONS)
@pytest.mark.long
def test_schemes_train_from_zeros_on(residual, monkeypatch):
    """20 steps, from a decoder of zeros on: the loss falls, and all stays finite."""
    # Which query tells which box does not matter here, and takes half of the time to compile.
    queries = jnp.broadcast_to(jnp.arange(3)[None, None], (2, 3, 3))
    monkeypatch.setattr(detection, "match", lambda *args: queries)
    config = tiny.config(residual, **SIZES, positions_in="attention", num_labels=2)
    model, images = tiny.model(config), batch()
    images["targets"] = images["targets"] % 2 + 1
    rng = np.random.default_rng(0)
    boxes = rng.integers(20_000, 40_000, (3, tiny.TARGET_LENGTH, 4), dtype=np.int32)
    images["boxes"] = boxes[:, :3]
    loss = Loss(detection.set_loss, detection.totals, detection.means, loss_settings())
    params = tiny.nn.unbox(tiny.init_function(config)(jax.random.key(0), images))
    for path, leaf in tiny.flat(params).items():
        assert not path.endswith("omega") or np.all(np.isfinite(leaf) & (leaf > 0)), path

    def step(params, _):
        def mean(params):
            total, weight, _ = loss(with_memory(model, params, images, None, ())[0], images)
            return total / weight

        value, gradient = jax.value_and_grad(mean)(params)
        return jax.tree.map(lambda p, g: p - 2e-3 * jnp.sign(g), params, gradient), value

    trained, losses = jax.jit(lambda params: jax.lax.scan(step, params, length=20))(params)
    assert losses[-1] < losses[0]
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(trained))
