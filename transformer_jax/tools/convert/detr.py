"""DETR (Carion et al. 2020) with a ResNet below it, whose norms are frozen."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from transformer_jax.configs import detr_r50
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import family, images, rows

_BACKBONE = "model.backbone.conv_encoder.model"
_STEMS = {"bottleneck": "resnet", "basic": "resnet_basic"}
# What config.json says of timm's networks is their name.
_TIMM = {
    "resnet18": ("resnet_basic", (2, 2, 2, 2)),
    "resnet34": ("resnet_basic", (3, 4, 6, 3)),
    "resnet50": ("resnet", (3, 4, 6, 3)),
    "resnet101": ("resnet", (3, 4, 23, 3)),
}
_KINDS = {"conv": "convolution", "0": "convolution", "bn": "normalization", "1": "normalization"}
_EPSILON = 1e-5  # of the frozen norms
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation
# How the paper steps each parameter.
_OPTIMIZER = detr_r50.get_config().optimizer
_STEPS = {f"optimizer.{key}": _OPTIMIZER[key] for key in ("name", "weight_decay", "groups")}


def _read(theirs: family.Settings, ours: family.Values) -> family.Values:
    backbone = theirs.part("backbone_config")
    if backbone.get("model_type", "timm_backbone") == "resnet":
        stem = backbone.choose("layer_type", _STEMS, "bottleneck")
        depths = backbone.whole("depths", 3, 4, 6, 3)
        (width,) = backbone.whole("embedding_size", 64)
    else:
        named = backbone if backbone.get("backbone") else theirs
        (stem, depths), width = named.choose("backbone", _TIMM, "resnet50"), 64
    for said in (theirs.part("backbone_kwargs"), backbone):
        said.refuse("output_stride", 32)
    backbone.refuse("num_channels", 3)
    backbone.refuse("hidden_act", "relu")
    backbone.refuse("hidden_sizes", _sizes(stem, depths, width))
    backbone.refuse("downsample_in_first_stage", False)
    backbone.refuse("downsample_in_bottleneck", False)
    features = backbone.get("out_features", [f"stage{len(depths)}"])
    if not isinstance(features, list) or features[-1:] != [f"stage{len(depths)}"]:
        raise ValueError(f"out_features={features!r} has no counterpart here, only the last stage")
    backbone.check_known(("backbone", "features_only", "out_*", "stage_names", "use_*", "freeze_*"))
    edges, fit = images.fitted(theirs, (800, 1333), "inside")
    side = 2 ** (len(depths) + 1)
    return {
        "stem": stem,
        "resnet_depths": depths,
        "resnet_width": width,
        "patch_size": side,
        "data.image_size": tuple(max(edge // side, 1) * side for edge in edges),
        "data.image_fit": fit,
        "data.max_target_length": ours["num_queries"],
        "data.packing": False,
        **_STEPS,
        **images.read(theirs, *_IMAGENET),
    }


def _write(ours: family.Values) -> family.Values:
    stem, depths, width = ours["stem"], ours["resnet_depths"], ours["resnet_width"]
    backbone = {
        "model_type": "resnet",
        "layer_type": next(theirs for theirs, name in _STEMS.items() if name == stem),
        "depths": depths,
        "embedding_size": width,
        "hidden_sizes": _sizes(stem, depths, width),
        "out_features": [f"stage{len(depths)}"],
    }
    return {"use_timm_backbone": False, "backbone": None, "backbone_config": backbone}


def _sizes(stem: str, depths: Sequence[int], width: int) -> tuple[int, ...]:
    """The channels of each stage."""
    first = width * (4 if stem == "resnet" else 1)
    return tuple(first * 2**stage for stage in range(len(depths)))


def _rows(config: TransformerConfig) -> list[rows.Row]:
    layer_rows = []
    for stack in ("encoder", "decoder"):
        names = rows.fairseq(stack, "post_norm")
        layer_rows += rows.layers(f"model.{stack}.layers.{{}}", stack, config, names)
    for number, name in enumerate(("first", "second", "boxes")):
        layer_rows += rows.linear(f"bbox_predictor.layers.{number}", f"box_head/{name}")
    return [
        *layer_rows,
        *_network(config),
        *rows.linear("class_labels_classifier", "box_head/labels"),
        *rows.norm("model.decoder.layernorm", "decoder_norm", config),
        rows.as_it_is("model.query_position_embeddings.weight", "queries/table"),
        rows.as_it_is("model.input_projection.bias", "embedding/stem/projection_bias"),
        rows.one(
            "model.input_projection.weight",
            "embedding/stem/projection",
            lambda x: x[:, :, 0, 0].T,
            lambda x: x.T[:, :, None, None],
        ),
    ]


def _network(config: TransformerConfig) -> Iterator[rows.Row]:
    """The convolutions, each with its norm."""
    bottleneck = config.stem == "resnet"
    yield from _convolution("embedder.embedder", "entry")
    for stage, depth in enumerate(config.resnet_depths):
        for block in range(depth):
            theirs, ours = f"encoder.stages.{stage}.layers.{block}", f"stage_{stage}_block_{block}"
            for number in range(3 if bottleneck else 2):
                yield from _convolution(f"{theirs}.layer.{number}", f"{ours}/conv_{number}")
            if not block and (stage or bottleneck):
                yield from _convolution(f"{theirs}.shortcut", f"{ours}/shortcut")


def _convolution(theirs: str, ours: str) -> list[rows.Row]:
    """A kernel (outputs, inputs, rows, columns), and a norm as what it multiplies by and adds."""
    theirs, ours = f"{_BACKBONE}.{theirs}", f"embedding/stem/{ours}"
    norm = ("weight", "bias", "running_mean", "running_var")

    def read(weight, bias, mean, variance):
        scale = weight / np.sqrt(variance + _EPSILON)
        return scale, bias - mean * scale

    def write(scale, offset):
        return scale, offset, 0 * scale, 0 * scale + np.float32(1 - _EPSILON)

    return [
        rows.one(
            f"{theirs}.convolution.weight",
            f"{ours}/kernel",
            lambda x: x.transpose(2, 3, 1, 0),
            lambda x: x.transpose(3, 2, 0, 1),
        ),
        rows.Row(
            tuple(f"{theirs}.normalization.{name}" for name in norm),
            (f"{ours}/scale", f"{ours}/offset"),
            read,
            write,
        ),
    ]


def _renamed(name: str) -> str:
    """The name in transformers' ResNet of a tensor that has its name in timm's."""
    if not name.startswith(f"{_BACKBONE}."):
        return name
    name = re.sub(
        r"layer(\d)\.(\d+)",
        lambda match: f"encoder.stages.{int(match[1]) - 1}.layers.{match[2]}",
        name,
    )
    name = re.sub(
        r"\.(conv|bn)(\d)", lambda match: f".layer.{int(match[2]) - 1}.{_KINDS[match[1]]}", name
    )
    name = re.sub(r"downsample\.(\d)", lambda match: f"shortcut.{_KINDS[match[1]]}", name)
    return name.replace(f"{_BACKBONE}.layer.0", f"{_BACKBONE}.embedder.embedder")


DETR = family.Family(
    name="detr",
    heads={"boxes": ("DetrForObjectDetection", "detection")},
    ours=dict(
        architecture="encoder_set",
        residual="post_ln",
        norm_epsilon=1e-5,
        positions="sine_2d",
        positions_in="attention",
        prefix_tokens=0,
    ),
    theirs=dict(
        num_channels=3,
        position_embedding_type="sine",
        dilation=False,
        scale_embedding=False,
        auxiliary_loss=False,  # which feeds the normed states of a layer to the next one
    ),
    both=(
        *family.FAIRSEQ,
        family.Setting("attention_dropout", "attention_dropout_rate", 0.0),
        family.Setting("activation_function", "activation", "relu", family.ACTIVATIONS),
        family.Setting("num_queries", "num_queries", 100),
    ),
    rows=_rows,
    read=_read,
    write=_write,
    also=lambda ours: {"stem": tuple(_STEMS.values())},
    renamed=_renamed,
    labels=("class_labels_classifier.weight", 1, True),  # COCO's has numbers without a label
    prefix="model.",
    idle=("*_cost", "*_coefficient", "backbone*", "max_position_*", "use_*"),
)
