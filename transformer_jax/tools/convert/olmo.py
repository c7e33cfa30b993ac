"""OLMo 1, 2 and 3 (Groeneveld et al. 2024; OLMo team 2024, 2025)."""

from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert import llama, rotary, rows
from transformer_jax.tools.convert.family import Settings, Values

_THEIRS = {"attention_bias": False, "hidden_act": "silu"}


def _unnormed(config: TransformerConfig) -> list[rows.Row]:
    """Norms have no parameters."""
    return [row for row in llama.make_rows(config) if "norm" not in row.theirs[0]]


def _windows(theirs: Settings, ours: Values) -> Values:
    pattern, window = ("window", "window", "window", "full"), theirs.get("sliding_window", 4096)
    kinds = rotary.read_pattern(theirs, ours, pattern, window)
    # An old file's one base is that of all layers; what is scaled is that of full layers alone.
    return kinds | rotary.read_by_kind(theirs, kinds, theta=5e5, old="rope_theta", window_theta=5e5)


OLMO = llama.family(
    "olmo",
    "Olmo",
    ours={"norm": "layer_norm_plain"},
    theirs={**_THEIRS, "clip_qkv": None},
    epsilon=None,
    rows=_unnormed,
)
_BRANCH = {
    "residual": "branch_ln",
    "qk_norm": True,
    "qk_norm_over": "heads",
}
OLMO2 = llama.family("olmo2", "Olmo2", ours=_BRANCH, epsilon=1e-5)
OLMO3 = llama.family(
    "olmo3",
    "Olmo3",
    ours=_BRANCH,
    epsilon=1e-5,
    read=_windows,
    write=lambda ours: {
        **rotary.written_by_kind(ours, "rope_theta"),
        "sliding_window": ours["window"],
    },
)
