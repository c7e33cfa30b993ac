"""What is left to do for a job."""

from experiments.harness.jobs import Job
from experiments.harness.sweep import Run
from transformer_jax import overrides


def test_a_trained_run_is_scored_again_where_scores_are_asked_for_otherwise(tmp_path):
    labels, settings = {"seed": 0}, {"decode.beam_size": 2}
    first = Run(config="configs/bigram_copy.py", overrides={}, labels=labels)
    second = Run(config="configs/bigram_copy.py", overrides=settings, labels=labels)
    moved = Run(config="configs/bigram_copy.py", overrides={"data.dir": "x"}, labels=labels)
    (tmp_path / "results.json").write_text('{"status": "plateaued"}')
    (tmp_path / "config.json").write_text(overrides.to_json(first.resolved))
    left = [len(Job(tmp_path, tmp_path, (each,)).commands()) for each in (first, second, moved)]
    assert left == [0, 1, 0]
    (tmp_path / "results.json").write_text('{"status": "preempted"}')
    assert len(Job(tmp_path, tmp_path, (first,)).commands()) == 1
