"""The look of figures: no two names look alike."""

from transformer_jax.models.transformer.schemes import SCHEMES
from transformer_jax.tools.reports import figures


def test_no_two_schemes_look_alike():
    styles = [tuple(figures.style(scheme).items()) for scheme in SCHEMES]
    assert len(set(styles)) == len(SCHEMES)
    # Nor in grey: where colours are left out, markers tell them apart.
    assert len({figures.style(scheme)["marker"] for scheme in SCHEMES}) == len(SCHEMES)


def test_a_scheme_looks_the_same_among_all_others():
    for among in (("admin",), ("post_ln", "admin")):
        assert figures.style("admin", among) == figures.style("admin")


def test_other_names_look_unlike_the_schemes_among_them():
    names = ["baseline", "post_ln", "pre_ln", "mine"]
    markers = {figures.style(name, names)["marker"] for name in names}
    assert len(markers) == len(names)
