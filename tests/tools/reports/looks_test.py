"""The look of figures: no two names look alike."""

from transformer_jax.models.transformer.schemes import SCHEMES
from transformer_jax.tools.reports import looks


def test_no_two_schemes_look_alike():
    styles = [tuple(looks.style(scheme).items()) for scheme in SCHEMES]
    assert len(set(styles)) == len(SCHEMES)
    # Nor in grey: where colours are left out, markers tell them apart.
    assert len({looks.style(scheme)["marker"] for scheme in SCHEMES}) == len(SCHEMES)
