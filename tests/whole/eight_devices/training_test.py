"""Training on a mesh of eight devices equals training on one device."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.whole.eight_devices import small
from tests.whole.eight_devices.small import Small
from transformer_jax.devices import mesh as sharding
from transformer_jax.training import cross_entropy
from transformer_jax.training import state as train_state

# Biases by distance, and norms over all heads, are sharded with the heads; layers choose between
# masks and rotations.
ATTENTION = {
    "positions": "rotary",
    "rotary_fraction": 0.7,
    "attention_bias": "all",
    "qk_norm": True,
    "qk_norm_over": "heads",
    "attention_softcap": 0.5,
    "logits_softcap": 3.0,
    "layer_pattern": ("unturned", "window"),
    "window": 4,
    "attention_weights": "sink",
    "attention_gate": "entry",
}
GATED = (("positions", "relative"), ("attention_weights", "sigmoid"), ("attention_gate", "head"))
# Every shape, each with a scheme of its own
ENCODER_DECODER = Small("encoder_decoder", "admin")
ENCODER = Small("encoder_only", "parallel", changes=(*ATTENTION.items(),))
DECODER = Small("decoder_only", "pre_ln", changes=GATED)
STEPS = 6


first = functools.cache(Small.first)
step_on = functools.cache(lambda run, mesh: run.on(mesh).train_step())


def trained(run: Small, mesh: str, steps=STEPS, forgets=False):
    """The losses, and the state afterwards, on the mesh of this name.

    With memory, rows go on where those of the batch before ended. forgets: but find it empty.
    """
    losses, on_mesh = [], run.on(small.MESHES[mesh])
    with sharding.use(on_mesh.mesh):
        step = step_on(run, small.MESHES[mesh])
        layout = train_state.layout(on_mesh.abstract_state)
        state = dataclasses.replace(first(run), rng=jax.random.key(1))
        state = jax.device_put(state, layout, may_alias=False)  # the step takes its state
        for number in range(steps):
            batch = small.batch(run.shape, number)
            if forgets:
                memory = jax.device_put(first(run).memory, layout.memory, may_alias=False)
                state = dataclasses.replace(state, memory=memory)
            if state.memory:
                batch["targets_positions"] += number > 0
            batch = sharding.place(on_mesh.mesh, batch)
            state, metrics = step(state, batch)
            losses.append(metrics["loss"])
    return np.array(losses), state


trained_alone = functools.cache(functools.partial(trained, mesh="one device"))


# Every mesh of several axes
CASES = [
    ("tensor and data", ENCODER_DECODER, False),
    ("fsdp, tensor and sequence", ENCODER_DECODER, False),
    # In chunks, where rows and vocabulary are sharded, and with or without the length
    ("fsdp, tensor and sequence", ENCODER, True),
    ("data, fsdp and tensor", DECODER, True),
    # Recurrent models, whose kernels are gathered before the scan over time
    ("data", Small("encoder_decoder", recurrence="rnnsearch"), False),
    ("data, fsdp and tensor", Small("encoder_decoder", recurrence="gnmt"), False),
    (
        "fsdp, tensor and sequence",
        Small("decoder_only", recurrence="lstmn", changes=(("num_decoder_layers", 1),)),
        False,
    ),
]


@pytest.mark.parametrize(("mesh", "run", "chunks"), CASES)
def test_losses_and_parameters_are_those_of_one_device(monkeypatch, mesh, run, chunks):
    """chunks: whether logits are made in chunks there, and whole on the one device."""
    expected_losses, expected = trained_alone(run)
    monkeypatch.setattr(cross_entropy, "LARGE", 0 if chunks else cross_entropy.LARGE)
    losses, state = trained(run, mesh)
    assert np.ptp(expected_losses) > 1e-3  # far above what is tolerated below
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(assert_close, state.params, expected.params)


@pytest.mark.parametrize(
    ("recurrence", "changes"),
    [("", (("positions", "distance"), ("memory_length", 8))), ("lstm", (("stateful", True),))],
)
def test_memory_is_sharded_with_the_rows_and_that_of_one_device(recurrence, changes):
    run = Small("decoder_only", "pre_ln", recurrence, 2, changes)
    expected_losses, expected = trained(run, "one device", steps=4)
    losses, state = trained(run, "data, fsdp and tensor", steps=4)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    other_losses, _ = trained(run, "one device", steps=4, forgets=True)
    assert np.all(np.abs(other_losses[1:] - expected_losses[1:]) > 1e-4)  # it is seen
    for name, leaf in state.memory.items():
        np.testing.assert_allclose(leaf, expected.memory[name], atol=1e-3)
        assert leaf.sharding.shard_shape(leaf.shape)[0] == leaf.shape[0] // 4
