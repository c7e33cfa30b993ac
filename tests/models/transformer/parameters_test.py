"""The parameter tree of each shape: paths, sizes, logical axes and initial values."""

import itertools

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AbstractMesh

from tests.models import tiny
from transformer_jax.devices import mesh as sharding
from transformer_jax.models.layers.feed_forward import ACTIVATIONS
from transformer_jax.models.transformer.schemes import SCHEMES

VARIANTS = {
    "admin_rms_gelu": dict(
        residual="admin", norm="rms_norm", activation="gelu", tied_embeddings="decoder"
    ),
    "learned_swiglu": dict(positions="learned", activation="swiglu", tied_embeddings="none"),
    "pre_ln_odd_heads": dict(
        residual="pre_ln", norm="rms_norm", num_heads=3, head_dim=7, num_encoder_layers=1,
        num_decoder_layers=3, positions="learned", activation="swiglu", embedding_norm=True,
    ),
    "rotary": dict(
        residual="pre_ln", positions="rotary", embedding_norm=True, attention_bias="all",
        norm="derf",
    ),
    "sub_ln_scores": dict(
        residual="sub_ln", qk_norm=True, attention_score="additive", attention_weights="sink",
        attention_gate="entry",
    ),
}  # fmt: skip
ARCHITECTURES = ("encoder_decoder", "decoder_only", "masked_tokens")


def expected_shapes(config):
    """The parameter tree as the design states it, path to shape."""
    V, D, F = config.vocab_size, config.d_model, config.d_ff
    H, K, C = config.num_heads, config.head_dim, config.num_labels
    gated = ACTIVATIONS[config.activation].gated

    def norm(*size):
        scalars = {"alpha": (), "shift": ()} if config.norm == "derf" else {}
        has_bias = config.norm in ("layer_norm", "derf")
        return scalars | {"scale": size} | ({"bias": size} if has_bias else {})

    attention = {
        "query": (D, H, K), "query_bias": (H, K), "key": (D, H, K), "value": (D, H, K),
        "value_bias": (H, K), "output": (H, K, D), "output_bias": (D,),
    }  # fmt: skip
    feed_forward = {"up": (D, F), "up_bias": (F,), "down": (F, D), "down_bias": (D,)}
    feed_forward |= {"gate": (D, F), "gate_bias": (F,)} if gated else {}
    if config.qk_norm:
        attention |= {"query_norm/scale": (K,), "key_norm/scale": (K,)}
    if config.attention_score == "additive":
        attention["score/vector"] = (H, K)
    attention |= {"sink": (H,)} if config.attention_weights == "sink" else {}
    attention |= {"gate": (D, H, K)} if config.attention_gate == "entry" else {}
    row = SCHEMES[config.encoder_residual]
    places = [name for name in ("pre_norm", "branch_norm", "post_norm") if getattr(row, name)]
    shapes = {}
    for stack, sublayers in tiny.stacks(config).items():
        L = getattr(config, f"num_{stack}_layers")
        for sublayer in sublayers:
            leaves = dict(feed_forward if sublayer == "feed_forward" else attention)
            if row.qkv_norm and sublayer != "feed_forward":
                leaves |= {f"{name}_norm/scale": (K,) for name in ("query", "key", "value")}
            if config.attention_bias == "all" and sublayer == "self_attention":
                leaves["key_bias"] = (H, K)
            if row.inner_norm and sublayer != "cross_attention":
                size = F if sublayer == "feed_forward" else H * K
                leaves |= {f"inner_norm/{k}": v for k, v in norm(size).items()}
            shapes |= {f"{stack}/{sublayer}/{k}": (L, *v) for k, v in leaves.items()}
            extras = {f"{place}/{k}": v for place in places for k, v in norm(D).items()}
            extras |= {"shortcut/omega": (D,)} if row.trained_skip else {}
            mixed = ("stream_scale/scale", "input_scale/scale")
            extras |= dict.fromkeys(mixed, ()) if row.input and sublayer == "self_attention" else {}
            if row.trained_branch:
                extras["branch_scale/scale"] = (D,) if row.trained_branch == "vector" else ()
            shapes |= {f"{stack}/{sublayer}_residual/{k}": (L, *v) for k, v in extras.items()}
        if row.ends_in_norm:
            shapes |= {f"{stack}_norm/{k}": v for k, v in norm(D).items()}
    two = config.architecture == "encoder_decoder"
    sides = ("source_", "target_") if two else ("",)
    tables = sides if config.tied_embeddings != "all" else ("",)
    shapes |= {f"{side}embedding/table": (V, D) for side in tables}
    for side in sides:
        if config.positions == "learned":
            shapes[f"{side}positions/table"] = (config.max_length, D)
        if config.embedding_norm or row.embedding_norm:
            shapes |= {f"{side}positions/norm/{k}": v for k, v in norm(D).items()}
    if config.head in ("classes", "tags"):
        return shapes | {"label_head/labels": (D, C), "label_head/labels_bias": (C,)}
    if config.tied_embeddings == "none":
        shapes["logits/kernel"] = (D, V)
    if config.architecture == "encoder_only":
        shapes |= {"token_head/transform": (D, D), "token_head/transform_bias": (D,)}
        shapes |= {f"token_head/norm/{k}": v for k, v in norm(D).items()}
        shapes["token_head/logits_bias"] = (V,)
    return shapes


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        *zip(itertools.cycle(ARCHITECTURES), [*VARIANTS] * 2, strict=False),
        *zip(itertools.cycle(ARCHITECTURES), SCHEMES, strict=False),
        ("mean_classes", "learned_swiglu"),
        ("tags", "admin"),
    ],
)
def test_parameters_have_their_shapes_and_logical_axes(shape, name):
    config = tiny.config(**(tiny.SHAPES[shape] | VARIANTS.get(name, dict(residual=name))))
    boxed = tiny.abstract_parameters(config)
    shapes = {path: leaf.shape for path, leaf in tiny.flat(nn.unbox(boxed)).items()}
    assert shapes == expected_shapes(config)
    boxes = tiny.flat(boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))
    mesh = AbstractMesh((2, 2, 2, 2), sharding.AXES)
    for path, box in boxes.items():
        assert isinstance(box, nn.LogicallyPartitioned), path
        sharding.spec(mesh, box.names, shapes[path])  # refuses what has no rule, or one for two
        assert (box.names[:1] == ("layers",)) == path.startswith(("encoder/", "decoder/")), path


@pytest.mark.parametrize("shape", ARCHITECTURES)
def test_too_long_a_row_for_learned_positions(shape):
    config = tiny.config(**tiny.SHAPES[shape], positions="learned", max_length=5)
    pairs = tiny.sentences((5, 5))
    abstract = nn.unbox(tiny.abstract_parameters(config, tiny.pack([pairs], 5, 5)))
    lengths = {"encoder_decoder": [(6, 5), (5, 6)], "decoder_only": [(5, 6)]}
    for source, target in lengths.get(config.architecture, [(6, 5)]):
        batch = tiny.pack([pairs], source, target)
        with pytest.raises(ValueError, match=r"6 tokens.*5.*max_length"):
            jax.eval_shape(tiny.apply_function(config), abstract, batch)


# Initial values


@pytest.mark.parametrize(
    ("shape", "kernels"),
    [("encoder_decoder", 7 + 11 + 1), ("masked_tokens", 7 + 2), ("tags", 7 + 1)],
)
def test_kernels_are_xavier_uniform_over_their_true_matrices(shape, kernels):
    """Bound sqrt(6 / (fan_in + fan_out)); with n draws the largest lies within 1 % of it but for a
    chance of 0.99^n, below 1e-8 for the smallest kernel here. The encoder-decoder has an attention
    gain by which queries, keys and values are drawn as one matrix from D inputs to all of them."""
    changes = tiny.SHAPES[shape] | (dict(num_labels=60) if shape == "tags" else {})
    inward = 48 + (3 * 56 if shape == "encoder_decoder" else 56)
    config = tiny.config(
        **changes, d_model=48, num_heads=4, head_dim=14, d_ff=80, activation="swiglu",
        vocab_size=70, tied_embeddings="none", num_encoder_layers=3, num_decoder_layers=4,
        attention_gain=((48 + 56) / inward) ** 0.5,
    )  # fmt: skip
    D, heads, F, V = config.d_model, 56, config.d_ff, config.vocab_size
    fans = {
        "query": inward, "key": inward, "value": inward, "output": heads + D,
        "up": D + F, "gate": D + F, "down": F + D, "kernel": D + V, "transform": D + D,
        "labels": D + config.num_labels,
    }  # fmt: skip
    checked = 0
    for path, kernel in tiny.flat(tiny.initial_parameters(config)).items():
        leaf = path.split("/")[-1]
        if leaf.endswith("bias"):
            assert not np.any(kernel), path
        elif leaf == "scale":
            assert np.all(kernel == 1), path
        elif leaf == "table":
            deviations = np.array([np.mean(kernel), np.std(kernel) * D**0.5 - 1])
            # Standard errors of a normal sample's mean and standard deviation, five of them.
            assert np.all(np.abs(deviations) < 5 * np.array([D**-0.5, 0.5**0.5]) / kernel.size**0.5)
        else:
            bound = (6 / fans[leaf]) ** 0.5
            assert 0.99 * bound < np.max(np.abs(kernel)) <= bound, path
            # The variance of n uniform draws has a relative standard error of sqrt(0.8 / n).
            ratio = np.var(kernel) / (bound**2 / 3)
            assert abs(ratio - 1) < 5 * (0.8 / kernel.size) ** 0.5, path
            checked += 1
    assert checked == kernels
