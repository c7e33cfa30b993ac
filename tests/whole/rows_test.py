"""An experiment's own rows: trained with, killed, resumed and asked from any folder."""

import os
import subprocess
import sys

import pytest

import transformer_jax as tj
from tests.own_rows import ROWS
from tests.processes import wait_for
from tests.whole.command_line import BYTES, call, records, results
from transformer_jax.config.load import load
from transformer_jax.configs import default
from transformer_jax.models.transformer.schemes import SCHEMES
from transformer_jax.tools.reports import report

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.mark.long
def test_a_run_of_ones_own_rows_is_found_from_anywhere(tmp_path, monkeypatch, capsys, forget):
    for name in ("mine", "elsewhere", "further"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine" / "rows.py").write_text(ROWS)
    changes = {
        **BYTES,
        "rows": str(tmp_path / "mine" / "rows.py"),
        "data.source": "counting",
        "data.validation": ("test",),
        "data.cache_dir": str(tmp_path / "cache"),
        "model.num_layers": 1,
        "model.encoder_residual": "mine",
        "model.decoder_residual": "doubled",
        "train.steps": 30,
        "train.probes": (("stream_rms", 2), ("sink_mass", 5)),
        "checkpoint.every": 4,
        "decode.method": "greedy",
        "decode.extra_length": 1,
    }
    monkeypatch.chdir(tmp_path)
    load(default.__file__, changes)  # a mistake would come at once
    lines = [
        "from transformer_jax.configs import default",
        "def get_config(arg):",
        "    c = default.get_config()",
    ]
    lines += [f"    c.update_from_flattened_dict({changes!r})", "    return c"]
    (tmp_path / "mine" / "config.py").write_text("\n".join(lines))
    run = tmp_path / "run"
    words = [sys.executable, "-m", "transformer_jax.main", f"--workdir={run}"]
    first = [*words, "--mode=train", f"--config={tmp_path}/mine/config.py"]
    with subprocess.Popen(first, cwd=tmp_path / "elsewhere", stdout=-1, text=True) as process:
        wait_for((run / "checkpoints" / "4" / "config.json").exists, process)
        process.kill()
    assert len(records(run)) < 30
    forget()
    monkeypatch.chdir(tmp_path / "further")
    assert call("--mode=train", f"--workdir={run}") == 0
    assert results(run)["steps"] == 30 and (run / "rows.py").read_text() == ROWS
    measured = {record["step"]: record for record in records(run)}
    places = "encoder", "decoder"
    for step in range(2, 31, 2):
        assert [len(measured[step][f"stream_rms/{place}"]) for place in places] == [2, 3]
    assert len(measured[5]["sink_mass/encoder"]) == 1

    forget()
    assert call("--mode=evaluate", f"--workdir={run}", "--split=validation") == 0
    (tmp_path / "lines").write_text("a d\n")
    page, output = f"--output={tmp_path}/look.html", f"--output={tmp_path}/report.html"
    assert call("--mode=look", f"--workdir={run}", f"--input={tmp_path}/lines", page) == 0
    assert report.main([str(run), output]) == 0
    assert "decoder/stream_rms" in (tmp_path / "report.html").read_text()
    forget()
    assert "mine" not in SCHEMES
    loaded = tj.load(run)
    assert loaded.config.model.encoder_residual == "mine" and loaded.generate("a d")
    assert os.listdir(".") == []
