"""Every run of a sweep is checked before any of them starts."""

import re

import pytest

from experiments import run
from experiments.harness.plan import check
from experiments.harness.sweep import Run

ELSEWHERE = "--bucket=gs://b/runs", "--data_dir=data"


@pytest.mark.parametrize(
    ("sweep", "flags", "message"),
    [
        ("other_arguments", [], "the run size=1: missing a required argument: 'size'"),
        ("other_model", [], "heads=3: model.d_model=8 is not divisible by model.num_heads=3"),
        ("clash", [], "beam=1 and beam=2 would share .* differ in decode.beam_size: 1 -> 2"),
        ("no_effect", [], "k=5: decode.top_k=5 has no effect with decode.method="),
        ("empty", [], "is empty"),
        ("unlisted", [], "rate=0.0 is a fork of rate=trunk, which the sweep does not list"),
        ("other_state", [], "cannot be a fork of rate=trunk: optimizer.beta1: 0.9 -> 0.5"),
        ("no_steps", [], "rate=0.0 has train.steps=10, and is a fork of rate=trunk at step 10"),
        ("nothing", [], "question has no sweep 'nothing', but .*measured, trained"),
        ("measured", ["--run=0123"], "question, sweep measured, has no run 0123"),
        ("measured", ["--new"], "--new makes a folder and runs nothing"),
        ("measured", ["--options=-p x"], "--executor=local does not read --options"),
        ("measured", ["--executor=slurm"], "found no sbatch on PATH"),
        ("measured", ["--executor=skypilot"], "expected gs://BUCKET/FOLDER"),
        ("measured", ["--executor=tpu", ELSEWHERE[0]], "found no gcloud on PATH"),
        ("measured", ["--executor=tpu", *ELSEWHERE], "data: the machines of --executor=tpu"),
        ("measured", ["--executor=skypilot", *ELSEWHERE], "of --executor=skypilot do not have"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    command, sweep, flags, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run.main(command(sweep, *flags)) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not [*tmp_path.glob("runs/question/*/log.txt")]


def test_a_mesh_is_checked_without_its_devices(tmp_path):
    def build(**mesh):
        overrides = {"data.batch_size": 8} | {f"mesh.{axis}": n for axis, n in mesh.items()}
        return check(Run(config="configs/bigram_copy.py", overrides=overrides, labels={}), tmp_path)

    assert build(tensor=64).mesh.shape == {"data": 1, "fsdp": 1, "tensor": 64, "sequence": 1}
    with pytest.raises(ValueError, match="cannot be dealt out evenly to 3 devices"):
        build(fsdp=3)
