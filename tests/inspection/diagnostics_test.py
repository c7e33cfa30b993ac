"""What training logs, against the measures one by one, and Admin's profile against its draw."""

import functools
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.defaults import loss_settings
from tests.inspection.models import (
    LOSS,
    POST_LN,
    PRE_LN,
    gradient_function,
    make,
    observe_function,
    sublayers,
)
from tests.models import tiny
from transformer_jax.inspection import observed, probes
from transformer_jax.inspection.dependency import own_dependency, profile
from transformer_jax.inspection.kernels import update
from transformer_jax.inspection.measures import PROBES, Step, diagnose
from transformer_jax.models.transformer import initialisation
from transformer_jax.tasks import TASKS
from transformer_jax.training.probe import Observation


# Of the two that tell classes one, as their pooling is behind all that probes see.
@pytest.mark.parametrize(
    ("number", "shape"), [*enumerate(name for name in tiny.SHAPES if name != "first_classes")]
)
def test_training_can_log_every_probe_of_every_shape(number, shape):
    """A row whose form is said here is measured in that; any other is a number, or one for each
    layer or sublayer."""
    changes = dict(qk_norm=number % 2 == 1, attention_weights="sink")
    config = tiny.config("admin", **changes, **tiny.SHAPES[shape])
    params = nn.unbox(tiny.abstract_parameters(config))
    batch = tiny.read_by(config, tiny.packed_batch())
    if "targets" not in batch:
        batch |= {"targets": batch["inputs"], "labels": batch["inputs"] % 5}
    task = next(row for row in TASKS.values() if row.heads.get(config.architecture) == config.head)
    parts = make(config), task.bound_loss(loss_settings(0.0)), tiny.roles(config)

    def measured(*step):
        step = Step(*parts, *step)
        return {name: measure(step) for name, measure in PROBES.items()}

    shapes = jax.eval_shape(measured, params, params, batch)
    forms = {name: {place: x.shape for place, x in row.items()} for name, row in shapes.items()}
    stacks = tiny.stacks(config)
    sublayers = {stack: (2 * len(kinds),) for stack, kinds in stacks.items()}
    names = "branch_variance dependency output_gradient_norm token_similarity max_activation"
    expected: dict[str, Any] = dict.fromkeys(names.split(), sublayers)
    names = "update_ratio update_rms update_angle"
    expected |= dict.fromkeys(names.split(), dict.fromkeys(stacks, (2,)))
    kinds = {f"{stack}/{kind}": (2,) for stack, kinds in stacks.items() for kind in kinds[:-1]}
    expected |= dict.fromkeys("entropy largest_logit query_norm key_norm".split(), kinds)
    expected |= {"output_change": dict.fromkeys(stacks, ()), "log_z": {"": ()}}
    assert {name: forms[name] for name in expected} == expected
    if shape in ("masked_tokens", "mean_classes"):  # see the last lens in heads_test
        assert not forms.pop("lens")
    for places in forms.values():
        assert set(places) and all(len(form) <= 1 for form in places.values())


@pytest.mark.long
def test_training_logs_the_parameters_before_a_step_and_the_change_that_it_made(monkeypatch):
    """It looks at the first rows of a batch: those beyond change nothing."""
    packed, more = tiny.packed_batch(), tiny.pack([tiny.sentences((5, 5), seed=1)])
    monkeypatch.setattr(probes, "ROWS", len(packed["inputs"]))
    batch = jax.tree.map(lambda *rows: np.concatenate(rows), packed, more)
    before, after = (tiny.random_parameters(POST_LN, seed) for seed in (0, 1))
    roles = tiny.roles(POST_LN)
    run: Any = SimpleNamespace(model=make(POST_LN), loss=LOSS, roles=roles)

    def measure(step) -> Any:
        return diagnose(step), {name: measure(step) for name, measure in PROBES.items()}

    state: Any = SimpleNamespace(params=after)
    measured: Any = probes.compiled(run, measure)(Observation(state, before, batch))
    metrics, single = measured

    look = observe_function(POST_LN)
    (outputs, olds), (_, news) = look(before, packed), look(after, packed)
    norms, _ = gradient_function()(before, packed)

    @jax.jit
    def one_by_one(logits, olds, news, norms):
        updates = update(before, after, roles)
        real = packed["targets_segment_ids"] > 0
        expected = {"log_z": jnp.mean(jax.nn.logsumexp(logits, axis=-1), where=real)}
        for stack, old in olds.items():
            expected |= {
                f"{stack}/branch_variance": observed.branch_variance(old),
                f"{stack}/dependency": own_dependency(POST_LN, before, stack, old),
                f"{stack}/output_gradient_norm": norms[stack],
                f"{stack}/token_similarity": observed.token_similarity(old),
                f"{stack}/update_ratio": updates[stack].ratio,
                f"{stack}/update_rms": updates[stack].rms,
                f"{stack}/update_angle": updates[stack].angle,
                f"{stack}/output_change": observed.output_change(old, news[stack]),
            }
            for kind in old.entropy:
                for name in ("entropy", "query_norm", "key_norm"):
                    values = getattr(old, name)[kind]
                    expected[f"{stack}/{kind}/{name}"] = observed.mean_over_queries(old, values)
                expected[f"{stack}/{kind}/largest_logit"] = observed.largest_logit(old, kind)
        return expected

    expected = one_by_one(outputs.arrays(), olds, news, norms)
    assert set(expected) == set(metrics)
    # No text reaches the last places, and in none a token occurs twice.
    assert np.isfinite(single.pop("loss_by_place")[""][:3]).all()
    unknown = {
        name
        for name, places in single.items()
        if not all(np.isfinite(values).all() for values in places.values())
    }
    assert unknown == {"duplicate_token", "prefix_match"}
    for name, values in expected.items():
        np.testing.assert_allclose(metrics[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.long
def test_the_profile_is_what_admins_profiling_measured():
    """It repeats the draw's dropout, so that each omega squared is the sum of the two variances of
    the sublayer before."""
    config = tiny.config("admin", dropout_rate=0.2, embedding_dropout_rate=0.2)
    key, batch = jax.random.key(3), tiny.packed_batch()
    draw = functools.partial(initialisation.initialise, make(config))
    params = nn.unbox(jax.jit(draw)(key, batch))
    profiles = profile(make(config), params, batch, key)
    assert set(profiles) == {"encoder", "decoder"}
    for stack, rows in profiles.items():
        places = zip(rows, sublayers(config, stack), strict=True)
        for number, (row, (layer, kind)) in enumerate(places, start=1):
            assert (row["sublayer"], row["layer"], row["kind"]) == (number, layer + 1, kind)
            omega = params[stack][f"{kind}_residual"]["shortcut"]["omega"][layer, 0]
            np.testing.assert_allclose(row["omega"], omega, rtol=1e-6)
        sums = [row["shortcut_variance"] + row["branch_variance"] for row in rows]
        squares = [row["omega"] ** 2 for row in rows]
        np.testing.assert_allclose(squares[1:], sums[:-1], rtol=1e-5)


def test_only_stacks_that_are_profiled_have_a_profile():
    params = tiny.random_parameters(PRE_LN)
    key = jax.random.key(0)
    assert profile(make(PRE_LN), params, tiny.packed_batch(), key) == {}
