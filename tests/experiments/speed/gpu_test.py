"""What runs on a GPU alone is at least a valid config, and its tables are those of its file."""

from pathlib import Path

from experiments.harness import results
from experiments.speed import gpu, gpu_report, sweep


def test_every_work_has_a_valid_config():
    works = [run.resolved.model for run in sweep.gpu(quick=False)]
    assert {model.dtype for model in works} == {"bfloat16"}


def test_the_page_shows_what_the_file_of_results_holds():
    page = Path(gpu.__file__).with_name("README.md").read_text("utf-8")
    assert gpu_report.report(results.read_json(gpu.RESULTS)) in page
