"""The table of parameterisations: how draws, multipliers and steps follow the width and the depth.

Those of a width and depth at which a learning rate was found, the base, are today's; elsewhere each
parameter gets powers of the ratio to the base, by its role. So the best learning rate of a small
model is to be that of a large one.
"""

import dataclasses
import math
from typing import NamedTuple

from transformer_jax.models.layers.parameter import Boxed, RoleName, Share

# Axes that grow with the width. Heads keep their size, and there are more of them.
_WIDE = ("embed", "embed_out", "mlp", "heads")


class Ratios(NamedTuple):
    """Width over base width, and layers of a parameter's stack over base depth."""

    width: float = 1.0
    depth: float = 1.0


class Growth(NamedTuple):
    """Exponents of one role.

    Attributes:
      draw: the width's, of the deviation that is drawn.
      multiplier: the width's, of what the parameter is multiplied by where it is used.
      learning_rate, epsilon: the width's and the depth's, for Adam. Depth counts in layers alone.
    """

    draw: float = 0.0
    multiplier: float = 0.0
    learning_rate: tuple[float, float] = (0.0, 0.0)
    epsilon: tuple[float, float] = (0.0, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameterization:
    """One row.

    Attributes:
      embedding, hidden, output, vector, head_vector: of the roles. Vectors outside of layers, such
        as a stack's last norm, and factors, such as Admin's omega, stay as they are.
      branch: the depth's exponent of what every residual branch is multiplied by.
    """

    embedding: Growth
    hidden: Growth
    output: Growth
    vector: Growth
    head_vector: Growth
    branch: float = 0.0

    @property
    def reads(self) -> tuple[str, ...]:
        """The keys of the config's model that it needs."""
        return ("base_width", "base_depth") if self.branch else ("base_width",)

    @property
    def tied(self) -> bool:
        """Whether one table can be both embedding and output: drawn and stepped alike."""
        return self.embedding._replace(multiplier=self.output.multiplier) == self.output


def _over_width(
    *, embedding: Growth, hidden: Growth, output: Growth, vector_epsilon: float
) -> Parameterization:
    """A row of width alone. The gains of a head sum up what `num_heads` heads say."""
    return Parameterization(
        embedding=embedding,
        hidden=hidden,
        output=output,
        vector=Growth(epsilon=(vector_epsilon, 0.0)),
        head_vector=Growth(epsilon=(vector_epsilon + 1, 0.0)),
    )


def _over_depth(row: Parameterization, alpha: float) -> Parameterization:
    """A row whose branches are divided by depth^alpha (Dey et al. 2025, table 1)."""

    def deep(growth: Growth) -> Growth:
        rate, epsilon = growth.learning_rate[0], growth.epsilon[0]
        return growth._replace(learning_rate=(rate, alpha - 1), epsilon=(epsilon, -alpha))

    return dataclasses.replace(
        row,
        hidden=deep(row.hidden),
        vector=deep(row.vector),
        head_vector=deep(row.head_vector),
        branch=-alpha,
    )


_MUP = _over_width(
    embedding=Growth(epsilon=(-1.0, 0.0)),
    hidden=Growth(draw=-0.5, learning_rate=(-1.0, 0.0), epsilon=(-1.0, 0.0)),
    output=Growth(multiplier=-1.0, epsilon=(-1.0, 0.0)),
    vector_epsilon=-1.0,
)

PARAMETERIZATIONS: dict[str, Parameterization | None] = {
    # All parameters with one learning rate, draws as of their modules: Xavier's.
    "standard": None,
    # Everett et al. 2024 (2407.05872), table 1: standard draws, a learning rate for each role.
    "standard_by_layer": _over_width(
        embedding=Growth(epsilon=(-0.5, 0.0)),
        hidden=Growth(draw=-0.5, learning_rate=(-1.0, 0.0), epsilon=(-0.5, 0.0)),
        output=Growth(draw=-0.5, learning_rate=(-1.0, 0.0)),
        vector_epsilon=-0.5,
    ),
    # Jacot et al. 2018 (1806.07572): multipliers instead of smaller draws.
    "ntk": _over_width(
        embedding=Growth(epsilon=(-0.5, 0.0)),
        hidden=Growth(multiplier=-0.5, learning_rate=(-0.5, 0.0), epsilon=(-1.0, 0.0)),
        output=Growth(multiplier=-0.5, learning_rate=(-0.5, 0.0), epsilon=(-0.5, 0.0)),
        vector_epsilon=-0.5,
    ),
    # Yang et al. 2021 (2203.03466), table 8. The symmetry of Adam turns it into tables 3 and 9: a
    # multiplier times c, with draw and learning rate over c, trains alike.
    "mup": _MUP,
    # Dey et al. 2025 (2505.01618), table 1: mup, and over depth with alpha = 1.
    "completep": _over_depth(_MUP, 1.0),
    # Yang et al. 2023 (2310.02244): mup, and over depth with alpha = 1/2.
    "depth_mup": _over_depth(_MUP, 0.5),
    # Mei et al. 2018 (1804.06561), as of Everett et al. 2024.
    "mean_field": _over_width(
        embedding=Growth(epsilon=(-1.0, 0.0)),
        hidden=Growth(multiplier=-0.5, learning_rate=(-0.5, 0.0), epsilon=(-1.5, 0.0)),
        output=Growth(multiplier=-1.0, epsilon=(-1.0, 0.0)),
        vector_epsilon=-1.0,
    ),
}


def share(row: Parameterization, box: Boxed, ratios: Ratios) -> Share:
    """What a parameterisation makes of a parameter.

    ratios: of the stack whose layers it is of, or of none.

    Raises:
      ValueError: the parameter has no role.
    """
    if box.factor:
        return Share()
    if box.role is None:
        raise ValueError(f"a parameter of axes {box.names} has no role to be parameterised by")
    growth: Growth = getattr(row, box.role)
    stacked = "layers" in box.names
    if box.role in ("vector", "head_vector") and not stacked:
        growth = Growth()
    width, depth = ratios.width, ratios.depth if stacked else 1.0
    deviation = width**growth.draw
    return Share(
        draw=_at_base(box, box.role, width) * deviation,
        deviation=deviation,
        multiplier=width**growth.multiplier,
        learning_rate=width ** growth.learning_rate[0] * depth ** growth.learning_rate[1],
        epsilon=width ** growth.epsilon[0] * depth ** growth.epsilon[1],
        width=width,
    )


def _at_base(box: Boxed, role: RoleName, width: float) -> float:
    """The deviation that is drawn at the base width, over the one that is drawn at this."""
    if box.matrix is None:
        return 1.0
    # N(0, 1 / width) of tokens, one deviation at all widths of places
    if role == "embedding" and "pixels" not in box.names:
        return width**0.5 if "vocab" in box.names else 1.0
    # Over the root of the inputs, of Xavier's that of inputs and outputs
    sides, at_base = 0.0, 0.0
    inputs, outputs = box.matrix
    shape = box.unbox().shape[-inputs - outputs :]
    names = box.names[-inputs - outputs :]
    for part in (slice(inputs), slice(inputs, None))[: 1 if box.by_inputs else 2]:
        size = math.prod(shape[part])
        sides += size
        at_base += size / width if any(name in _WIDE for name in names[part]) else size
    return (sides / at_base) ** 0.5
