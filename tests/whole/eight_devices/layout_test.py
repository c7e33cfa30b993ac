"""What each device of a mesh holds of the arrays, and what the compiled programs exchange."""

import itertools
import re

import jax
import numpy as np
import pytest

from tests.models import tiny
from tests.whole.eight_devices import small
from tests.whole.eight_devices.small import LENGTH, ROWS, SIZES, Small
from transformer_jax.devices import mesh as sharding
from transformer_jax.tools.preflight import hlo
from transformer_jax.training import cross_entropy

FSDP, TENSOR = 4, 2
MESH = 1, FSDP, TENSOR, 1
RUN = Small("encoder_decoder", "admin")


@pytest.fixture(scope="module")
def state():
    return RUN.new(MESH)


@pytest.fixture(scope="module")
def step():
    """The compiled training step."""
    return RUN.compiled(MESH)


def shapes(text):
    """The shapes of all float32 arrays in a part of a compiled program."""
    matches = re.findall(r"\bf32\[([\d,]+)\]", text)
    return {tuple(map(int, sizes.split(","))) for sizes in matches}


def exchanged(step, kind):
    """The (shape of the result, mesh axes) of each collective of a kind."""
    mesh = RUN.on(MESH).mesh
    instructions = itertools.chain(*hlo.parse(step.as_text()).computations.values())
    return {
        (shape, hlo._over(instruction.rest, dict(mesh.shape), [0] * mesh.size)[0])
        for instruction in instructions
        if instruction.op.removesuffix("-start") == kind
        for shape in shapes(instruction.type)
    }


def activations(rows, tensor=1):
    """The shapes of the model's activations: `rows` rows, heads and units sharded `tensor` ways."""
    d_model, num_heads, head_dim, d_ff, vocab_size = SIZES.values()
    inner = [(d_ff // tensor,), (vocab_size // tensor,), (num_heads // tensor, head_dim)]
    scores = (rows, num_heads // tensor, LENGTH, LENGTH)
    return {(rows, LENGTH, d_model), scores} | {(rows, LENGTH, *sizes) for sizes in inner}


def test_each_array_is_made_where_it_stays(state):
    """No device holds a whole kernel or a whole moment of one."""
    abstract = RUN.on(MESH).abstract_state
    for array, shape in zip(jax.tree.leaves(state), jax.tree.leaves(abstract), strict=True):
        assert array.sharding == shape.sharding
    adam = state.opt_state[1]
    for tree in (state.params, adam.mu, adam.nu):
        for path, array in tiny.flat(tree).items():
            kernel = not path.endswith(("bias", "scale", "omega"))
            # Biases of heads and hidden units have no D axis, other vectors have nothing else.
            inner = path.endswith(("query_bias", "value_bias", "up_bias"))
            shards = FSDP * TENSOR if kernel else TENSOR if inner else FSDP
            assert array.addressable_shards[0].data.size * shards == array.size, path


def test_a_step_holds_no_array_whole(state, step):
    """Neither a kernel of all layers nor an activation of all rows, in any order of axes."""
    sorted_shapes = {tuple(sorted(shape)) for shape in shapes(step.as_text())}
    kernels = {leaf.shape for leaf in jax.tree.leaves(state.params) if leaf.ndim > 2}
    for whole in kernels | activations(ROWS) | activations(ROWS, TENSOR):
        assert tuple(sorted(whole)) not in sorted_shapes, whole
    for part in activations(ROWS // FSDP, TENSOR):
        assert tuple(sorted(part)) in sorted_shapes, part
    arguments = step.memory_analysis().argument_size_in_bytes
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves((state.params, state.opt_state)))
    assert arguments < 1.5 * whole / (FSDP * TENSOR)


def test_a_step_gathers_parameters_over_fsdp_and_no_activation(step):
    """It gathers one layer of each parameter, and only the device's heads, units or vocabulary."""

    def of_a_layer(role):
        return tuple(
            size // TENSOR if sharding.RULES[str(axis)] == ("tensor",) else size
            for axis, size in zip(role.axes, role.shape, strict=True)
            if axis != "layers"
        )

    roles = RUN.on(MESH).roles.values()
    sharded = {of_a_layer(role) for role in roles if "embed" in role.axes}
    gathered = exchanged(step, "all-gather")
    assert gathered == {(shape, ("fsdp",)) for shape in sharded}


def test_a_step_sums_activations_over_tensor_and_gradients_over_fsdp(step):
    summed = exchanged(step, "all-reduce")
    assert ((ROWS // FSDP, LENGTH, SIZES["d_model"]), ("tensor",)) in summed
    assert ((SIZES["d_model"], SIZES["d_ff"] // TENSOR), ("fsdp",)) in summed


def test_logits_in_chunks_gather_nothing_more(monkeypatch, step):
    monkeypatch.setattr(cross_entropy, "LARGE", 0)
    in_chunks = RUN.compiled(MESH)
    logits = (ROWS // FSDP, LENGTH, SIZES["vocab_size"] // TENSOR)
    assert logits in shapes(step.as_text()) and logits not in shapes(in_chunks.as_text())
    assert exchanged(in_chunks, "all-gather") == exchanged(step, "all-gather")


def test_admins_omegas_and_all_draws_are_those_of_one_device(state):
    expected = tiny.flat(RUN.new(small.ALONE).params)
    leaves = tiny.flat(state.params)
    omegas = [path for path in leaves if path.endswith("omega")]
    assert len(omegas) == 5 and any(np.ptp(leaves[path]) > 0.1 for path in omegas)
    for path, leaf in leaves.items():
        np.testing.assert_allclose(leaf, expected[path], rtol=1e-5, atol=1e-7, err_msg=path)


def test_what_the_mesh_does_not_divide_stays_whole_and_trains():
    """In bfloat16 and with rematerialised layers, too."""
    changes = (("num_heads", 3), ("d_model", 30), ("dtype", "bfloat16"), ("remat", "dots"))
    run = Small("decoder_only", changes=changes)
    mesh = small.MESHES["data, fsdp and tensor"]
    state, run = run.new(mesh), run.on(mesh)
    with sharding.use(run.mesh):
        query = state.params["decoder"]["self_attention"]["query"]
        assert query.addressable_shards[0].data.shape == (2, 15, 3, 6)
        batch = sharding.place(run.mesh, small.batch("decoder_only", 0))
        state, metrics = run.train_step()(state, batch)
    assert np.isfinite(metrics["loss"])
