"""What every row of the models' tables has to keep: a new row is tested here by being there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models import FAMILIES
from transformer_jax.models.family import roles
from transformer_jax.models.layers.attention import Attention
from transformer_jax.models.layers.kernels import KERNELS
from transformer_jax.models.layers.masks import Segments
from transformer_jax.models.layers.positions import POSITIONS
from transformer_jax.models.transformer.config import ARCHITECTURES
from transformer_jax.models.transformer.schemes import SCHEMES

# A tiny config of each family, by architecture.
TINY = {"transformer": lambda architecture: tiny.config(architecture=architecture)}
MODELS = [(name, shape) for name, family in FAMILIES.items() for shape in family.shapes]
# Float32 sums in another order.
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


@functools.cache
def made(family, architecture):
    """A model, random parameters of it, and the compiled batch -> outputs."""
    row, config = FAMILIES[family], TINY[family](architecture)
    model = row.shapes[architecture](config)
    batch = tiny.read_by(config, tiny.packed_batch())
    boxed = jax.eval_shape(functools.partial(row.init, model), jax.random.key(0), batch)
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(0.0, 0.3, leaf.shape), jnp.float32),
        tiny.nn.unbox(boxed),
    )

    @jax.jit
    def apply(batch):
        batch = tiny.read_by(config, batch)
        return model.apply({"params": params}, batch, deterministic=True)

    return model, params, boxed, apply


def targets(count):
    return [target for _, target in tiny.sentences(*[(5, tiny.TARGET_LENGTH)] * count, seed=1)]


@pytest.mark.parametrize(("family", "architecture"), MODELS)
def test_a_parameter_says_what_it_is(family, architecture):
    """A matrix takes all axes of a layer's own, and matrices alone decay here."""
    _, params, boxed, _ = made(family, architecture)
    boxes = tiny.flat(boxed, is_leaf=lambda leaf: hasattr(leaf, "names"))
    found = roles(boxed)
    assert found.keys() == tiny.flat(params).keys()
    for path, role in found.items():
        own = len(boxes[path].names) - role.stacked
        assert role.matrix is None or sum(role.matrix) == own, path
        assert role.decay == (role.matrix is not None), path
        assert role.stacked == ("layers" in boxes[path].names[:1]), path


# An encoder alone neither decodes nor has targets.
DECODING = [
    (family, architecture)
    for family, architecture in MODELS
    if hasattr(FAMILIES[family].shapes[architecture], "step")
]


@pytest.mark.parametrize(("family", "architecture"), DECODING)
def test_stepping_equals_the_whole_pass(family, architecture):
    model, params, _, apply = made(family, architecture)
    rows = targets(3)
    batch = tiny.pack([[(source, row)] for source, row in zip(targets(3), rows, strict=True)])
    inputs = tiny.read_by(model.config, batch)
    if "inputs" not in inputs:  # a prompt of bos alone
        bos = np.full((3, 1), model.config.bos_id, np.int32)
        inputs = {"inputs": bos, "inputs_segment_ids": bos * 0 + 1, "inputs_positions": bos * 0}
    call = functools.partial(model.apply, {"params": params})
    tokens, context, cache = call(inputs, tiny.TARGET_LENGTH, method="start")
    step = jax.jit(functools.partial(call, method="step"))
    logits = []
    for t in range(tiny.TARGET_LENGTH):
        now, cache = step(context, cache, tokens, jnp.int32(t))
        logits.append(now)
        tokens = np.stack(rows)[:, t]
    assert_close(np.stack(logits, axis=1), apply(batch))


@pytest.mark.parametrize(("family", "architecture"), DECODING)
def test_a_target_changes_later_outputs_alone(family, architecture):
    _, _, _, apply = made(family, architecture)
    ((source, target),) = tiny.sentences((5, tiny.TARGET_LENGTH))
    altered = [
        np.where(np.arange(len(target)) == t, (target + 3) % 19 + 4, target)
        for t in range(len(target))
    ]
    before, *after = apply(tiny.pack([[(source, row)] for row in (target, *altered)]))
    for t, outputs in enumerate(after):
        np.testing.assert_array_equal(before[: t + 1], outputs[: t + 1])
        assert np.all(np.abs(before[t + 1 :] - outputs[t + 1 :]).max(axis=-1) > 0)


def test_the_transformers_shapes_are_its_architectures():
    assert FAMILIES["transformer"].shapes.keys() == ARCHITECTURES.keys()


# Kernels


def _runs_here(row):
    return row.platforms is None or jax.default_backend() in row.platforms


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", [name for name, row in KERNELS.items() if _runs_here(row)])
def test_a_kernel_equals_the_plain_formula(kernel, causal):
    """Outputs at every real token, for the kernels that run on the devices at hand."""
    row = KERNELS[kernel]
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.normal(size=(2, 9, 16)), jnp.float32)
    ids = jnp.asarray([[1, 1, 1, 2, 2, 2, 2, 0, 0], [1, 1, 2, 2, 2, 3, 3, 3, 3]])
    segments = Segments(ids, ids, causal)
    mask = segments if row.reads_segments else segments.pairs()
    module = Attention(
        d_model=16, num_heads=2, head_dim=8, dtype=jnp.dtype("float32"), kernel=kernel
    )

    def attend(module, x):
        return module(x, *module.keys_values(x), mask, deterministic=True)

    variables = tiny.nn.unbox(module.init(jax.random.key(0), x, method=attend))
    w, found = variables["params"], np.asarray(module.apply(variables, x, method=attend))
    # Biases start at 0.
    q, k, v = (jnp.einsum("BTD,DHK->BTHK", x, w[name]) for name in ("query", "key", "value"))
    heads = jax.nn.dot_product_attention(q, k, v, mask=segments.pairs()[:, None])
    expected = jnp.einsum("BTHK,HKD->BTD", heads, w["output"])
    assert_close(found[ids > 0], expected[ids > 0])


# Positions


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions_tell_the_order_of_tokens(kind):
    """An encoder gives every token of a text with two others exchanged another vector; and the
    same text further back in a row, after another one, the same."""
    config = tiny.config(architecture="encoder_only", positions=kind)
    params, apply = tiny.random_parameters(config), tiny.apply_function(config)
    text, other = np.array([4, 5, 6, 1], np.int32), np.array([5, 4, 6, 1], np.int32)
    logits = np.asarray(apply(params, tiny.pack([[(text, text)], [(other, other)]])))
    assert np.all(np.abs(logits[0, 2:4] - logits[1, 2:4]).max(axis=-1) > 1e-3)
    moved = np.asarray(apply(params, tiny.pack([[(other, other), (text, text)], []])))
    assert_close(moved[0, 4:8], logits[0, :4])


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions_refuse_the_odd_sizes_that_they_cannot_split(kind):
    for size in ("d_model", "head_dim"):
        if size == POSITIONS[kind].even:
            with pytest.raises(ValueError, match=f"{kind} positions .* even model.{size}.* got 15"):
                tiny.config(positions=kind, **{size: 15})
        else:
            tiny.config(positions=kind, **{size: 15})


# Residual schemes


@pytest.mark.parametrize("residual", SCHEMES)
def test_a_schemes_parameters_follow_from_its_row(residual):
    """Norms where the row has them, trained scales where it trains them, and no others."""
    row, config = SCHEMES[residual], tiny.config(residual)
    leaves = tiny.flat(tiny.nn.unbox(tiny.abstract_parameters(config)))
    shapes = {path: leaf.shape for path, leaf in leaves.items()}
    own = {"pre_norm": row.pre_norm, "branch_norm": row.branch_norm, "post_norm": row.post_norm}
    own |= {"shortcut": row.trained_skip, "branch_scale": row.trained_branch is not None}
    for stack, kinds in tiny.stacks(config).items():
        assert any(path.startswith(f"{stack}_norm/") for path in shapes) == row.ends_in_norm
        for kind in kinds:
            place = f"{stack}/{kind}_residual/"
            found = {path.removeprefix(place).split("/")[0] for path in shapes if place in path}
            assert found == {name for name, there in own.items() if there}
            sizes = {"scalar": (2,), "vector": (2, config.d_model)}
            if row.trained_branch:
                assert shapes[f"{place}branch_scale/scale"] == sizes[row.trained_branch]
            inner = any(path.startswith(f"{stack}/{kind}/inner_norm/") for path in shapes)
            assert inner == (row.inner_norm and kind != "cross_attention")
