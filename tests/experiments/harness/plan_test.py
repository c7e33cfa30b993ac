"""Every run of a sweep is checked before any of them starts."""

import re

import pytest

from experiments import run
from experiments.harness.plan import check
from experiments.harness.sweep import Run


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("other_arguments", "the run size=1: missing a required argument: 'size'"),
        ("other_model", "the run heads=3: model.d_model=8 is not divisible by model.num_heads=3"),
        ("clash", "beam=1 and beam=2 would share .* differ in decode.beam_size: 1 -> 2"),
        ("empty", "is empty"),
        ("nothing", "question has no sweep 'nothing', but measured, trained"),
    ],
)
def test_mistakes_are_found_before_anything_runs(command, sweep, message, tmp_path, capsys):
    assert run.main(command(sweep)) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def test_a_mesh_is_checked_without_its_devices(tmp_path):
    def build(**mesh):
        overrides = {"data.batch_size": 8} | {f"mesh.{axis}": n for axis, n in mesh.items()}
        return check(Run(config="configs/bigram_copy.py", overrides=overrides, labels={}), tmp_path)

    assert build(tensor=64).mesh.shape == {"data": 1, "fsdp": 1, "tensor": 64, "sequence": 1}
    with pytest.raises(ValueError, match="cannot be dealt out evenly to 3 devices"):
        build(fsdp=3)


def test_a_setting_without_effect_is_found_before_anything_runs(tmp_path):
    run = Run(config="configs/bigram_copy.py", overrides={"decode.top_k": 5}, labels={"k": 5})
    with pytest.raises(ValueError, match="k=5: decode.top_k=5 has no effect with decode.method="):
        check(run, tmp_path)
