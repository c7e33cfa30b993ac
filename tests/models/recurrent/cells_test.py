"""With weights copied, outputs and gradients equal those of PyTorch's own recurrent layers."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models.recurrent.layers import Bidirectional

torch = pytest.importorskip("torch")

ROWS, LENGTH, INPUTS, WIDTH = 3, 7, 5, 4
LAYERS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def to_torch(params):
    """Our parameters under PyTorch's names. It has two biases, of which one is 0 or of a GRU's
    candidate alone."""
    state = {}
    for direction, suffix in (("forward", ""), ("backward", "_reverse")):
        weights = params[direction]
        zeros = np.zeros_like(weights["bias"])
        if "candidate_bias" in weights:
            zeros[2] = weights["candidate_bias"]
        state[f"weight_ih_l0{suffix}"] = weights["input"].reshape(INPUTS, -1).T
        state[f"weight_hh_l0{suffix}"] = weights["recurrent"].reshape(WIDTH, -1).T
        state[f"bias_ih_l0{suffix}"] = weights["bias"].ravel()
        state[f"bias_hh_l0{suffix}"] = zeros.ravel()
    return state


@pytest.mark.parametrize("cell", LAYERS)
def test_outputs_and_gradients_equal_pytorchs(cell):
    layer = Bidirectional(tiny.recurrent(cell), INPUTS, WIDTH)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, LENGTH, INPUTS)).astype(np.float32)
    cotangent = generator.normal(size=(ROWS, LENGTH, 2 * WIDTH)).astype(np.float32)
    places = np.broadcast_to(np.arange(LENGTH)[None], (ROWS, LENGTH))
    starts, ends = places == 0, places == LENGTH - 1
    shapes = tiny.nn.unbox(jax.eval_shape(layer.init, jax.random.key(0), x, starts, ends))["params"]
    params = jax.tree.map(
        lambda leaf: generator.normal(0, 0.5, leaf.shape).astype(np.float32), shapes
    )

    def loss(params, x):
        out: Any = layer.apply({"params": params}, x, starts, ends)
        return jnp.sum(out * cotangent), out

    (_, out), (of_params, of_x) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(
        params, x
    )

    theirs = LAYERS[cell](INPUTS, WIDTH, batch_first=True, bidirectional=True)
    state = {name: torch.tensor(value) for name, value in to_torch(params).items()}
    theirs.load_state_dict(state, strict=True)
    their_x = torch.tensor(x, requires_grad=True)
    expected, _ = theirs(their_x)
    torch.sum(expected * torch.tensor(cotangent)).backward()
    assert_close(out, expected.detach().numpy())
    assert_close(of_x, their_x.grad)
    ours = to_torch(jax.tree.map(np.asarray, of_params))
    for name, parameter in theirs.named_parameters():
        gradient, expected = ours[name], parameter.grad.numpy()
        if name.startswith("bias_hh"):  # of which ours are the candidate's of a GRU alone
            gradient, expected = gradient[2 * WIDTH : 3 * WIDTH], expected[2 * WIDTH : 3 * WIDTH]
            if cell == "lstm":
                continue
        assert np.abs(gradient).max() > 1e-3, f"{name}: no gradient to compare"
        assert_close(gradient, expected, err_msg=name)
