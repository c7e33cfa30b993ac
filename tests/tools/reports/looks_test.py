"""The look of figures: no two names look alike."""

from transformer_jax.models.transformer.schemes import SCHEMES
from transformer_jax.tools.reports import looks


def test_no_two_schemes_look_alike():
    styles = [tuple(looks.style(scheme).items()) for scheme in SCHEMES]
    assert len(set(styles)) == len(SCHEMES)
    # Nor in grey: where colours are left out, markers tell them apart.
    assert len({looks.style(scheme)["marker"] for scheme in SCHEMES}) == len(SCHEMES)


def test_schemes_of_ones_own_look_like_no_other():
    """What they stand beside looks as ever, and names that are no schemes by their order."""
    names = ["mine", "post_ln", "yours", "admin"]
    styles = [looks.style(name, names) for name in names]
    assert len({(style["marker"], style["color"], style["linestyle"]) for style in styles}) == 4
    assert styles[1] == looks.style("post_ln") and styles[0]["label"] == "mine"
    assert looks.style("mine", [*SCHEMES, "mine"])["label"] == "mine"
    assert [looks.style(n, range(3))["marker"] for n in range(3)] == ["o", "s", "^"]
