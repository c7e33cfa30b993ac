"""What preflight says of a run, of programs that do not fit, and of what would fit."""

import dataclasses

import pytest

from tests.tools.preflight.small import PEAK, PROGRAM, local, make
from transformer_jax.tools.preflight import report
from transformer_jax.tools.preflight.program import TooLarge


@pytest.mark.long
def test_the_report_of_this_machine():
    """Both programs are there, and fit."""
    texts = list(report.report(make, local(), explained=True))
    assert any(text.startswith("Training step: fits") for text in texts)
    assert any(text.startswith("Decoding: the prompts") for text in texts)
    assert sum(text.startswith("What moves the memory, by line") for text in texts) == 2


@pytest.mark.parametrize(
    ("fitting", "advice"),
    [
        (("full", 2), "with --config.model.remat=full --config.train.accumulation_steps=2"),
        (None, "take more or larger devices"),
    ],
)
def test_what_does_not_fit_says_by_how_much_and_what_would_fit(monkeypatch, fitting, advice):
    def compile_step(run, memory):
        if (run.model.config.remat, run.train.accumulation_steps) != fitting:
            raise TooLarge(needed=7 * 2**30, available=memory)
        return PROGRAM

    monkeypatch.setattr(report, "compile_step", compile_step)
    with pytest.raises(RuntimeError) as error:
        list(report.report(make, local(memory=5.5 * 2**30), explained=False))
    assert "7.00 of 5.50 GiB of each device, 1.50 GiB too much" in str(error.value)
    assert advice in str(error.value)


def test_search_lists_what_fits_fastest_first(monkeypatch):
    """One device has one mesh, and so a candidate each policy: here some do not fit."""

    def compile_step(run, memory):
        flops = {"dots": 9000.0, "full": 8000.0}.get(run.model.config.remat)
        if flops is None:
            raise TooLarge(needed=2 * memory, available=memory)
        return dataclasses.replace(PROGRAM, flops=flops)

    monkeypatch.setattr(report, "compile_step", compile_step)
    texts = list(report.search(make, local(memory=2**33, peak=PEAK)))
    assert "--config.model.remat=none: too large, 16.00 of 8.00 GiB" in texts[0]
    ranking = texts[texts.index("\n2 fit, fastest first:") + 1 :]
    assert [text.split("remat=")[1] for text in ranking] == ["full", "dots"]
    assert "80 s (products), 5.00 GiB" in ranking[0]
