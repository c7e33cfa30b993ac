"""A run takes what fits of another one's parameters, and says what became of each."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.states import ORIGIN, bits, flip_a_bit, folder_with, make_state, save_powers
from tests.models import tiny
from transformer_jax.checkpoint import init_from as init_from_file
from transformer_jax.checkpoint.checkpoints import Checkpoints
from transformer_jax.checkpoint.init_from import Grid, InitReport, format_report, resample
from transformer_jax.models.transformer.schemes import SCHEMES

init_from = functools.partial(
    init_from_file.init_from,
    before=Path("none"),
    config={},
    tokenizer=ORIGIN.tokenizer,
    labels=ORIGIN.labels,
    token_paths={"embedding/table"},
    label_paths={"head/kernel"},
    factor_paths=(),
)


def test_init_from_takes_what_fits_and_says_what_became_of_the_rest(tmp_path):
    folder_with(tmp_path / "checkpoints", 3, 4)
    fresh = {
        "decoder": {"query": jnp.ones((2, 3, 4), jnp.bfloat16)},  # of another type
        "embedding": {"table": jnp.ones((6, 3))},  # of another shape
        "logits": {"kernel": jnp.ones((3, 6))},  # not there
    }
    saved = make_state(4).params
    for path, step in ((tmp_path, 4), (tmp_path / "checkpoints" / "3", 3)):
        params, report = init_from(path, fresh)
        query = make_state(step).params["decoder"]["query"].astype(jnp.bfloat16)
        assert jax.tree.structure(params) == jax.tree.structure(fresh)
        assert bits(params) == bits(fresh | {"decoder": {"query": query}})
        assert report == InitReport(
            checkpoint=str(tmp_path / "checkpoints" / str(step)),
            taken=("decoder/query",),
            new=("embedding/table", "logits/kernel"),
            left={"embedding/table": "its shape (5, 3) is not (6, 3)"},
        )
    _, report = init_from(tmp_path, {"decoder": saved["decoder"]})
    assert report.left == {"embedding/table": "no such parameter"}
    text = format_report(report)
    assert "1 of 1 parameters taken, 0 new, 1 left" in text
    assert "embedding/table: no such parameter" in text and "WARNING" not in text
    many = format_report(report._replace(new=tuple("abcdefghijklmnop"))).splitlines()
    *lines, rest = [line for line in many if line.startswith("  new ")]
    assert f"... and {16 - len(lines)} more, see init_from.json" in rest


def test_init_from_takes_what_depends_on_labels_or_tokens_from_a_run_of_the_same_alone(tmp_path):
    """As many others give parameters of the same shape, which mean something else."""
    params = make_state(4).params | {"head": {"kernel": jnp.ones((3, 2))}}
    _save(tmp_path, params)
    (tmp_path / "labels.json").write_text("this is no part of the checkpoint")
    _, report = init_from(tmp_path, params)
    assert report.taken == ("decoder/query", "embedding/table", "head/kernel")
    _, report = init_from(tmp_path, params, labels=("yes", "no"))
    assert report.taken == ("decoder/query", "embedding/table")
    assert report.new == ("head/kernel",)
    assert report.left == {"head/kernel": "it is of other labels"}
    _, report = init_from(tmp_path, params, tokenizer="tokenizer-2")
    assert report.taken == ("decoder/query", "head/kernel")
    assert report.left == {"embedding/table": "it is of another tokenizer"}


def test_init_from_takes_the_moving_average_where_there_is_one(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=2, best_metric="")
    for step in (2, 3):
        save_powers(checkpoints, step, {}, averaged=True)
    checkpoints.close()
    for path, expected in ((tmp_path, 8), (tmp_path / "checkpoints" / "2", 4)):
        params, _ = init_from(path, {"table": jnp.zeros(2)})
        np.testing.assert_array_equal(params["table"], expected)


def test_a_run_starts_again_from_the_checkpoint_that_it_started_from(tmp_path, caplog):
    """Though the other run has gone on; where that has removed it, a warning says so."""
    other, path = tmp_path / "other", tmp_path / "init_from.json"
    folder_with(other / "checkpoints", 3, 4)
    fresh = make_state(1).params
    params, report = init_from(other / "checkpoints" / "3", fresh, before=path)
    path.write_text(json.dumps(report._asdict()))
    for source in (other, other / "checkpoints" / "3"):
        again, report = init_from(source, fresh, before=path)
        assert bits(again) == bits(params) == bits(make_state(3).params)
        assert report.checkpoint == str(other / "checkpoints" / "3")
        assert "is gone" not in caplog.text

    flip_a_bit(other / "checkpoints" / "3")
    for source in (other, other / "checkpoints" / "4"):  # of which the second is another source
        newer, report = init_from(source, fresh, before=path)
        assert bits(newer) == bits(make_state(4).params)
        assert caplog.text.count(f"{path}: {other}/checkpoints/3 is gone") == 1
        caplog.clear()
    path.write_text("{}")
    with pytest.raises(ValueError, match="init_from.json is broken .*: remove it"):
        init_from(other, fresh, before=path)


def test_init_from_nothing_is_refused(tmp_path):
    folder_with(tmp_path / "checkpoints", 1)
    with pytest.raises(ValueError, match="embedding/table: no such parameter"):
        init_from(tmp_path, {"table": jnp.ones(3)})
    with pytest.raises(FileNotFoundError, match="neither a work directory nor a whole checkpoint"):
        init_from(tmp_path / "none", {})
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        init_from(tmp_path / "empty", {})
    flip_a_bit(tmp_path / "checkpoints" / "1")
    for path in (tmp_path, tmp_path / "checkpoints" / "1"):
        with pytest.raises(FileNotFoundError, match="whole"):
            init_from(path, make_state(1).params)


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (9, 5), (3, 14), (7, 6)])
def test_learned_positions_of_images_are_resampled_as_by_torch(rows, columns):
    torch = pytest.importorskip("torch")
    table = np.random.default_rng(0).normal(size=(2 + 7 * 6, 5))
    vectors = resample(table, Grid(2, 7, 6), Grid(2, rows, columns), 2 + rows * columns + 3)
    grid = torch.from_numpy(table[2:].reshape(1, 7, 6, 5)).permute(0, 3, 1, 2)
    expected = torch.nn.functional.interpolate(grid, (rows, columns), mode="bicubic")
    expected = expected.permute(0, 2, 3, 1).reshape(-1, 5).numpy()
    np.testing.assert_array_equal(vectors[:2], table[:2])
    np.testing.assert_allclose(vectors[2:-3], expected, atol=1e-12)
    assert not vectors[-3:].any()


# Every scheme that trains factors, two at a time.
TRAINED = [name for name, row in SCHEMES.items() if row.trained_skip or row.trained_branch]
TRAINED += TRAINED[: len(TRAINED) % 2]
PAIRS = [TRAINED[n : n + 2] for n in range(0, len(TRAINED), 2)]


def _without_factors(name):
    """The scheme that is otherwise the same, and has no scale where the other trains one."""
    row = SCHEMES[name]
    changes: dict[str, Any] = dict(trained_skip=False, profiled=False, trained_branch=None)
    changes |= {"skip": None} if row.trained_skip else {}
    changes |= {"branch": None} if row.trained_branch else {}
    SCHEMES[f"{name} without"] = dataclasses.replace(row, **changes)
    return f"{name} without"


@pytest.mark.long
@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_factors_that_a_scheme_adds_leave_the_function_as_it_was(tmp_path, encoder, decoder):
    """Also of Admin, whose draws are profiled. A stack that the checkpoint lacks keeps its own."""
    new = tiny.config(decoder, encoder_residual=encoder)
    old = tiny.config(_without_factors(decoder), encoder_residual=_without_factors(encoder))
    saved, fresh = tiny.random_parameters(old), tiny.random_parameters(new, seed=1)
    _save(tmp_path, saved)
    factors = {path for path, role in tiny.roles(new).items() if role.factor}
    assert len(factors) == 5
    params, report = init_from(tmp_path, fresh, factor_paths=factors)
    assert set(report.ones) == set(report.new) == factors and not report.left
    batch = tiny.packed_batch()
    expected = tiny.apply_function(old)(saved, batch)
    np.testing.assert_array_equal(tiny.apply_function(new)(params, batch), expected)
    assert "at 1   encoder/" in format_report(report)

    _save(tmp_path / "encoder", {"encoder": saved["encoder"]})
    params, report = init_from(tmp_path / "encoder", fresh, factor_paths=factors)
    assert {path.partition("/")[0] for path in report.ones} == {"encoder"}
    assert bits(params["decoder"]) == bits(fresh["decoder"])


def _save(workdir, params):
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=1, best_metric="")
    checkpoints.save(1, {"params": params}, {}, ORIGIN, {}, scheduled=True, records=0)
    checkpoints.close()
