"""ViT (Dosovitskiy et al. 2021), as a classifier of images."""

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import family, images, rows

_INWARD = [f"attention.attention.{name}" for name in ("query", "key", "value")]
_LAYER = {
    "self_attention": [*_INWARD, "attention.output.dense"],
    "self_attention_residual/pre_norm": "layernorm_before",
    "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense",
    "feed_forward_residual/pre_norm": "layernorm_after",
}


def _read(theirs: family.Settings, ours: family.Values) -> family.Values:
    side, *others = theirs.whole("patch_size", 16)
    if any(other != side for other in others):
        raise ValueError(f"patch_size={[side, *others]} has no counterpart here, only squares")
    size = (2 * theirs.whole("image_size", 224))[:2]  # one number stands for both
    edges, fit = images.fitted(theirs, size, "stretch")
    if edges != size or fit == "inside":
        raise ValueError(
            f"{images.FILE}: images are fitted to {edges} by {fit!r}, and image_size={size} of "
            "config.json is one size that all have: make them equal, as height and width"
        )
    places = 1 + size[0] // side * (size[1] // side)
    return {
        "patch_size": side,
        "max_length": places,
        "data.image_size": size,
        "data.image_fit": fit,
        "data.row_source_length": places,
        **images.read(theirs, mean=(0.5,), std=(0.5,)),
    }


def _write(ours: family.Values) -> family.Values:
    side = ours["patch_size"]
    return {"patch_size": side, "image_size": [side * count for count in ours["grid"]]}


def _rows(config: TransformerConfig) -> list[rows.Row]:
    side, embeddings = config.patch_size, "vit.embeddings"
    patches = f"{embeddings}.patch_embeddings.projection"
    return [
        rows.one(
            f"{patches}.weight",
            "embedding/stem/kernel",
            lambda x: x.transpose(2, 3, 1, 0).reshape(-1, x.shape[0]),
            lambda x: x.reshape(side, side, -1, x.shape[-1]).transpose(3, 2, 0, 1),
        ),
        rows.as_it_is(f"{patches}.bias", "embedding/stem/bias"),
        rows.first(f"{embeddings}.cls_token", "embedding/prefix"),
        rows.first(f"{embeddings}.position_embeddings", "positions/table"),
        *rows.layers("vit.encoder.layer.{}", "encoder", config, _LAYER),
        *rows.norm("vit.layernorm", "encoder_norm", config),
        *rows.linear("classifier", "label_head/labels"),
    ]


VIT = family.Family(
    name="vit",
    heads={"image_classes": ("ViTForImageClassification", "image_classification")},
    ours=dict(
        architecture="encoder_only",
        residual="pre_ln",
        positions="learned",
        stem="patches",
        prefix_tokens=1,
        pooling="first",
    ),
    theirs=dict(qkv_bias=True),
    both=(
        *family.SIZES,
        family.Setting("hidden_act", "activation", "gelu", family.ACTIVATIONS),
        family.Setting("layer_norm_eps", "norm_epsilon", 1e-12),
        family.Setting("hidden_dropout_prob", "dropout_rate embedding_dropout_rate", 0.0),
        family.Setting("attention_probs_dropout_prob", "attention_dropout_rate", 0.0),
    ),
    rows=_rows,
    read=_read,
    write=_write,
    unread=("vit.pooler.*", "vit.embeddings.mask_token"),
    labels=("classifier.weight", 0, True),  # ImageNet's has two cranes
    prefix="vit.",
    idle=("encoder_stride", "pooler_*"),
)
