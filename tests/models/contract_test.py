"""What every row of the models' tables has to keep: a new row is tested here by being there."""

import pytest

from tests.models import tiny
from transformer_jax.models import FAMILIES
from transformer_jax.models.layers.positions import POSITIONS
from transformer_jax.models.layers.settings import ARCHITECTURES
from transformer_jax.models.recurrent.config import RecurrentConfig

# A tiny model of each family and shape, and of each row of the recurrent models.
CONFIGS = {
    **{f"transformer-{shape}": tiny.config(architecture=shape) for shape in ARCHITECTURES},
    **tiny.RECURRENT,
}


def test_each_family_and_shape_is_among_the_models():
    models = {(type(config), config.architecture) for config in CONFIGS.values()}
    shapes = [(row.config, shape) for row in FAMILIES.values() for shape in ARCHITECTURES]
    assert models == {shape for shape in shapes if shape != (RecurrentConfig, "encoder_set")}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_parameter_says_what_it_is(name):
    """A matrix takes all axes of a layer's own; matrices decay, and an additive score's vector."""
    config = CONFIGS[name]
    boxes = tiny.flat(tiny.abstract_parameters(config), is_leaf=lambda leaf: hasattr(leaf, "names"))
    roles = tiny.roles(config)
    assert roles.keys() == boxes.keys()
    for path, role in roles.items():
        rank = len(boxes[path].names) - role.stacked
        assert role.matrix is None or sum(role.matrix) == rank, path
        # It is a kernel of one output, as in `AdditiveScore`.
        assert role.decay == (role.matrix is not None or path.endswith("/vector")), path
        assert role.stacked == ("layers" in boxes[path].names[:1]), path
        assert (role.axes, role.shape) == (boxes[path].names, boxes[path].value.shape), path


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions_refuse_the_odd_sizes_that_they_cannot_split(kind):
    for size in ("d_model", "head_dim"):
        if size == POSITIONS[kind].even:
            with pytest.raises(ValueError, match=f"{kind} positions need .* model.{size}.* got 15"):
                tiny.config(positions=kind, grid=(2, 3), **{size: 15})
        else:
            tiny.config(positions=kind, grid=(2, 3), **{size: 15})
