"""Programs are weighed once a shape, before they run."""

import logging

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.devices.memory import Need, Place, checked, place
from transformer_jax.devices.mesh import make_mesh, use

MESH = make_mesh((1, 1, 1, 1), jax.devices())
GIB = 2**30


def test_what_is_too_large_names_its_largest_part_and_what_to_lower():
    """Devices share what all of them need."""
    here = Place("each device", whole=4 * GIB, free=2 * GIB, share=0.5)
    needs = [Need("small", 1 * GIB, "a=1"), Need("large", 2.5 * GIB, "b=2")]
    assert here.refusal("training", needs) is None and here.needed(needs) == 1.75 * GIB
    needs.append(Need("largest", 5 * GIB, "c=3"))
    assert here.refusal("training", needs) == (
        "training needs at least 4.2 GiB of memory, and each device has 4.0 GiB. "
        "Largest part: largest, 2.5 GiB. Lower c=3"
    )


def outer(x, rows):
    """Takes memory of the square of the number of rows."""
    products = jnp.sin(x * rows[:, None] * rows[None])
    return jnp.sort(products, axis=0) @ rows


def test_a_program_is_refused_or_told_of_before_it_runs(limit, caplog):
    step = checked(jax.jit(outer), "scoring", "evaluate.batch_size")
    x, few, many = jnp.ones(()), jnp.ones(8), jnp.ones(2000)
    limit(whole=2**20)
    step(x, many)  # no mesh is in use, so nobody says what memory it runs in
    with use(MESH), caplog.at_level(logging.WARNING):
        step(x, few)
        assert not caplog.records
        step = checked(jax.jit(outer), "scoring", "evaluate.batch_size")
        with pytest.raises(ValueError, match="scoring needs at least .* 1.0 MiB.*evaluate.batch"):
            step(x, many)
        limit(whole=2**30, free=2**20)
        for _ in range(2):
            step(x, many)
    (record,) = caplog.records  # once a shape
    assert "scoring probably needs" in record.getMessage()


def test_what_is_traced_as_part_of_another_program_is_not_weighed(limit):
    limit(whole=0)
    step = checked(jax.jit(outer), "scoring", "")
    with use(MESH):
        assert jax.eval_shape(lambda x: step(1.0, x), jnp.ones(3)).shape == (3,)


def test_devices_of_a_cpu_share_the_memory_of_the_machine(limit):
    limit(whole=7, free=5)
    assert place(MESH) == Place("this machine", 7, 5, share=1)
