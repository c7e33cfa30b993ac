"""The page of a report: its data are those of the runs, and a browser shows them."""

import base64
import html
import itertools
import json
import re
import shutil
import statistics

import numpy as np
import pytest
from scipy import stats

from experiments.harness.sweep import ROOT
from tests.tools.pages.page_data import array, unreached
from tests.tools.reports.workdirs import NASTY, make, make_twenty, records
from transformer_jax.tools.reports import arms, compare, looks
from transformer_jax.tools.reports import page as report
from transformer_jax.tools.reports import records as work
from transformer_jax.tools.reports import report as command


@pytest.fixture
def read(tmp_path):
    """What the page shows of runs that are made as `make` says."""

    def read(**runs):
        folders = [make(tmp_path / name, **how) for name, how in runs.items()]
        return report.data([work.read(folder) for folder in folders])

    return read


def test_curves_are_what_the_metrics_say(tmp_path, read):
    data = read(a={}, b={"seed": 1, "steps": 9})
    assert not {"step", "spike/loss"} & set(data["curves"])
    assert "step_size" in data["curves"]
    for number, name in enumerate("ab"):
        for metric, curves in data["curves"].items():
            rows = [row for row in records(tmp_path / name) if metric in row]
            assert curves[number] == {
                "steps": [row["step"] for row in rows],
                "values": [row[metric] for row in rows],
            }
        assert data["runs"][number]["spikes"] == {"steps": [7], "values": [9.0]}


def test_bands_are_means_and_intervals_of_the_seeds_that_have_a_value(read):
    """Runs are seeds of one if nothing else differs; one of them has ended early."""
    data = read(
        a={"seed": 0},
        b={"seed": 1, "steps": 9, "planned": 20},
        c={"seed": 1, "model": {"residual": "admin"}},
    )
    assert [group["runs"] for group in data["groups"]] == [[0, 1], [2]]
    assert [group["name"] for group in data["groups"]] == ["pre_ln (2 seeds)", "c"]
    assert [run["group"] for run in data["runs"]] == [0, 0, 1]
    assert "n = 1 to 2" in data["convention"]
    for name, (band, alone) in data["bands"].items():
        assert alone is None
        curves = [dict(zip(*data["curves"][name][run].values(), strict=True)) for run in (0, 1)]
        assert band["steps"] == sorted(set().union(*curves))
        for at, step in enumerate(band["steps"]):
            values = [curve[step] for curve in curves if step in curve]
            assert band["mean"][at] == pytest.approx(statistics.mean(values))
            assert band["count"][at] == len(values)
            ends = [band["low"][at], band["high"][at]]
            if len(values) == 1:
                assert ends == [None, None]
            else:
                half = stats.t.ppf(0.975, 1) * stats.sem(values)
                assert np.subtract(ends, band["mean"][at]) == pytest.approx([-half, half])


def test_an_arm_has_its_colour_in_figures_and_on_the_page(tmp_path):
    """And arms are in the order of their sweep, whatever their folders are called."""
    order = ["c", "a", "b", "d"]
    for number, name in enumerate(order):
        scheme, seed = ("pre_ln", "admin")[number // 2], number % 2
        labels = {"scheme": scheme, "seed": seed}
        make(tmp_path / name, seed=seed, model={"residual": scheme}, labels=labels)
    (tmp_path / "sweeps.json").write_text(json.dumps({"cpu": order}))
    runs = work.gather(sorted(tmp_path.glob("?")))
    assert [run.folder.name for run in runs] == order
    data = report.data(runs)
    assert [group["name"] for group in data["groups"]] == ["pre_ln (2 seeds)", "admin (2 seeds)"]
    figure = compare._draw(arms.arms(runs))
    assert figure is not None
    colours = [line.get_color() for line in figure.axes[0].lines[::2]]
    assert colours == [group["looks"]["color"] for group in data["groups"]]
    assert colours == [looks.style(scheme)["color"] for scheme in ("pre_ln", "admin")]


def test_runs_on_other_data_are_no_seeds_of_each_other(tmp_path):
    """Nor is their mean a line, whatever their labels; where the data was cached is nothing."""
    runs = []
    for name, seed, corpus in (("a", 0, "A"), ("b", 0, "B"), ("c", 1, "B")):
        labels, source = {"corpus": name, "size": 1}, {"dir": corpus, "cache_dir": name}
        run = make(tmp_path / name, seed=seed, labels=labels, config={"data": source})
        runs.append(work.read(run))
    data = report.data(runs)
    assert [group["runs"] for group in data["groups"]] == [[0], [1, 2]]
    assert not {"b", "c"} & {*data["groups"][1]["name"].split()}
    for alone, _ in data["bands"].values():
        assert alone is None


def test_a_run_and_its_copy_are_no_two_seeds(tmp_path):
    run = make(tmp_path / "run")
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "link").symlink_to(run)
    runs = [work.read(tmp_path / name) for name in ("run", "copy", "link")]
    data = report.data([*runs, work.read(make(tmp_path / "other", model={"residual": "admin"}))])
    assert [group["runs"] for group in data["groups"]] == [[0], [1], [2], [3]]
    assert [group["name"] for group in data["groups"]] == ["run", "copy", "link", "other"]


def _long(folder, seed):
    """A run whose loss is finite but at a step, with one peak and one dip; and its losses."""
    losses = np.random.default_rng(seed).uniform(2, 3, 12_000)
    losses[[seed + 9_000, seed + 9_010]] = 9 + seed, seed - 1
    lines = [{"step": step, "train/loss": loss} for step, loss in enumerate(losses.tolist(), 1)]
    lines[2_345]["train/loss"] = None
    lines[-1] |= {"diagnostics/x": [1.0, 2.0]}
    make(folder, seed=seed, steps=0, planned=12_000)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder, {line["step"]: line["train/loss"] for line in lines}


def test_of_a_long_run_what_stands_out_is_shown(tmp_path):
    """Each point is one of the log, and none that it leaves out is outside those beside it."""
    runs, losses = zip(*(_long(tmp_path / str(seed), seed) for seed in range(2)), strict=True)
    read = [work.read(run) for run in runs]
    data = report.data(read)
    assert len(report.report(read, "t")) < 2e6
    for curve, series in zip(data["curves"]["train/loss"], losses, strict=True):
        points = dict(zip(curve["steps"], curve["values"], strict=True))
        assert len(points) == len(curve["steps"]) < 8_000
        assert curve["steps"] == sorted(points) and points.items() <= series.items()
        assert 2_346 in points and 12_000 in points
        finite = [value for value in series.values() if value is not None]
        assert {min(finite), max(finite)} <= {*points.values()}
    (band,) = data["bands"]["train/loss"]
    assert band["count"] == [2] * len(band["steps"])
    stretches = zip(band["steps"], [*band["steps"][1:], 12_001], strict=True)
    for at, (first, end) in enumerate(stretches):
        inside = [[series[step] for step in range(max(first, 1), end)] for series in losses]
        known = [[value for value in values if value is not None] for values in inside]
        assert band["mean"][at] == pytest.approx(statistics.mean(values[-1] for values in known))
    assert arms.facts(read[0])["steps"] == "12,000 of 12,000"
    assert data["runs"][0]["diagnostics"]["x"]["steps"] == [12_000]


def test_diagnostics_are_rows_by_depth(tmp_path, read):
    data = read(run={"diagnostics": 5})
    for name, curve in data["runs"][0]["diagnostics"].items():
        rows = [row for row in records(tmp_path / "run") if f"diagnostics/{name}" in row]
        expected = [row[f"diagnostics/{name}"] for row in rows]
        assert curve["steps"] == [row["step"] for row in rows]
        values = array(curve["values"])
        np.testing.assert_array_equal(values, np.reshape(expected, values.shape).astype("f4"))
    names = {"decoder/branch_variance", "decoder/output_change"}
    assert set(data["runs"][0]["diagnostics"]) == names


def test_tables_are_those_of_compare(tmp_path, read, capsys, undrawn):
    data = read(a={}, b={"model": {"residual": "admin"}})
    compare.compare([tmp_path / "a", tmp_path / "b"], tmp_path / "figure")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for row in (*data["config"], *data["scores"]):
        assert " ".join(row).split() in rows


def test_samples_are_those_of_each_evaluation_and_of_the_end(tmp_path):
    run = make(tmp_path / "run", samples="1   source")
    lines = [{"step": step, "samples": [[NASTY, [f"is {step}"]]]} for step in (10, 20)]
    (run / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert report.data([work.read(run)])["runs"][0]["samples"] == [
        {"step": 10, "text": f"{NASTY}\n    is 10"},
        {"step": 20, "text": f"{NASTY}\n    is 20"},
        {"step": None, "text": "1   source"},
    ]


def test_runs_of_any_state_and_of_an_experiment_are_one_page(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "runs" / "experiments" / "lr"
    for number in range(2):
        make(home / str(number), seed=number, labels={"scheme": "admin", "seed": number})
    for name in ("results.json", "metrics.jsonl"):
        (home / "1" / name).unlink()
    assert command.main(["--experiment=lr"]) == 0
    assert "2 runs" in capsys.readouterr().out
    assert "<title>lr</title>" in (tmp_path / "report.html").read_text()
    folder = f"{tmp_path}/elsewhere/lr"  # that of the experiment itself
    assert command.main([f"--experiment={folder}", "--output=two.html"]) == 0
    assert (tmp_path / "two.html").read_text().partition("<title>lr</title>")[1]
    (home / "sweeps.json").write_text("{}")
    assert command.main([*map(str, home.iterdir()), "--output=two.html"]) == 0
    assert capsys.readouterr().err == ""
    assert command.main([str(home / "1"), str(tmp_path), "--output=one.html"]) == 0
    assert "is not a run" in capsys.readouterr().err
    assert (tmp_path / "one.html").exists()


@pytest.mark.parametrize(
    "name", [path.parent.name for path in sorted(ROOT.glob("experiments/*/README.md"))]
)
def test_an_experiment_without_runs_is_its_readme_with_the_figures_inside(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert command.main([f"--experiment={name}"]) == 0
    page = (tmp_path / "report.html").read_text()
    text = (ROOT / "experiments" / name / "README.md").read_text()
    title, *headings = re.findall("^##? (.*)$", text, flags=re.MULTILINE)
    assert f"<h1>{html.escape(title)}</h1>" in page
    assert [f"<h2>{heading}</h2>" in page for heading in headings] == [True] * len(headings)
    figures = re.findall(r"!\[(.*)\]\((.*)\)", text)
    for caption, file in figures:
        assert f"<strong>{html.escape(caption)}</strong>" in page
        figure = (ROOT / "experiments" / name / file).read_bytes()
        assert base64.b64encode(figure).decode() in page
    assert page.count("<img") == len(figures) and "&lt;!--" not in page


@pytest.mark.parametrize(("second", "chance"), [(2.1, True), (2.21, False)])
def test_a_finding_says_where_a_difference_may_be_chance(tmp_path, second, chance):
    losses = {"post_ln": (2.0, second), "pre_ln": (1.5, 1.7)}
    for scheme, seed in itertools.product(losses, range(2)):
        score = {"validation/token_loss": losses[scheme][seed]}
        make(tmp_path / f"{scheme}{seed}", model={"residual": scheme}, seed=seed, results=score)
    finding = arms.finding(arms.arms([work.read(run) for run in sorted(tmp_path.iterdir())]))
    half = stats.t.interval(0.95, 1, 0, stats.sem([0.5, second - 1.7]))[1]
    assert (half > np.mean([0.5, second - 1.7])) == chance == finding.endswith("may be chance.")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({0: 1.0}, {1: 2.0}),
        ({0: 1.0, 1: 1.5}, {2: 2.0, 3: 2.5}),
        # The arm that is ahead by its means is behind in its pairs, and always so.
        ({0: 1.0, 1: 1.1, 2: 3.0}, {0: 1.2, 1: 1.3}),
    ],
)
def test_a_difference_that_no_pairs_tell_may_be_chance(tmp_path, ours, theirs):
    for scheme, losses in (("pre_ln", ours), ("post_ln", theirs)):
        for seed, loss in losses.items():
            place, score = tmp_path / f"{scheme}{seed}", {"validation/token_loss": loss}
            make(place, model={"residual": scheme}, seed=seed, results=score)
    finding = arms.finding(arms.arms([work.read(run) for run in sorted(tmp_path.iterdir())]))
    assert finding.endswith("may be chance.")


def test_a_finding_leaves_out_what_diverged_and_says_so(tmp_path):
    """Its last loss before it diverged is no score of a training."""
    for scheme, seed in itertools.product(("post_ln", "pre_ln"), range(2)):
        run = make(tmp_path / f"{scheme}{seed}", model={"residual": scheme}, seed=seed)
        line = {"step": 20, "validation/token_loss": 1.0 + (scheme == "pre_ln")}
        (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "post_ln0" / "results.json").write_text('{"status": "diverged", "steps": 30}')
    of_arms = arms.arms([work.read(run) for run in sorted(tmp_path.iterdir())])
    finding = arms.finding(of_arms)
    assert finding.startswith(
        "post_ln (2 seeds) has the lowest validation loss, 1: -1 (1 pair, 1 run"
    )
    assert finding.endswith("Of post_ln (2 seeds), 1 of 2 diverged.")
    rows = {name: columns for name, *columns in arms.score_rows(of_arms)}
    assert rows["validation/token_loss"] == ["1 of 2 have one", "2.0000"]


@pytest.mark.long
def test_what_was_measured_once_is_a_dot_with_its_value(tmp_path, opened):
    """And the finding says which group has the lowest loss, and by how much."""
    losses = {"post_ln": (2.0, 2.1), "pre_ln": (1.5, 1.7), "admin": (3.0, None)}
    for scheme, seed in itertools.product(losses, range(2)):
        run = make(tmp_path / f"{scheme}{seed}", model={"residual": scheme}, seed=seed)
        line = {"step": 20, "validation/token_loss": losses[scheme][seed]}
        (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    tab = opened(report.report([work.read(run) for run in sorted(tmp_path.iterdir())], "t"))
    lead = tab.locator(".lead").inner_text()
    t = stats.t.ppf(0.975, 1)  # times the standard errors of 1.5 and 1.7, of -0.5 and -0.4
    mean, less = f"1.6 ± {t * 0.1:.1f}", f"-0.45 ± {t * 0.05:.2f} (2 pairs) against post_ln"
    less += " (2 seeds), which may be chance"  # 0 lies inside
    assert lead == f"pre_ln (2 seeds) has the lowest validation loss, {mean}: {less}."
    assert tab.locator(".dots").inner_text().split("\n")[1:2] == ["3"]
    assert tab.locator("canvas").count() == 0
    assert unreached(tab) == []


@pytest.mark.long
def test_a_browser_shows_twenty_runs(tmp_path, opened):
    runs = make_twenty(tmp_path / "runs")
    late = runs[5] / "metrics.jsonl"  # pre_ln_1
    late.write_text(late.read_text().split("\n", 10)[-1])
    page = tmp_path / "report.html"
    assert command.main([*map(str, runs), f"--output={page}"]) == 0
    assert page.stat().st_size < 10e6
    tab = opened(page.read_text("utf-8"))
    chart, readout = tab.get_by_role("application").first, tab.locator(".readout").first
    slider = tab.locator("input[type=range]").first

    def button(text):
        return tab.locator("button", has_text=text).first

    def lines():
        return chart.get_attribute("aria-label")

    # Texts of any kind stand there as texts.
    assert NASTY in tab.locator("pre").first.text_content()
    assert NASTY in tab.locator(".texts").first.text_content()
    # Mouse: a group goes, bands open into runs.
    button("admin (4 seeds)").click()
    assert "4 lines" in lines()
    button("Seeds as bands").click()
    assert "16 lines" in lines()
    # Under the mouse stand the numbers of the step: those of the log.
    chart.hover()
    said = readout.text_content()
    step = int(said.partition(":")[0].removeprefix("step ").replace(",", ""))
    (logged,) = [row for row in records(runs[1]) if row["step"] == step]
    assert f"post_ln_1: {float(format(logged['validation/token_loss'], '.4g')):g}" in said
    # Keyboard: the cursor goes from step to step, a button is pressed, a slider is moved.
    chart.focus()
    tab.keyboard.press("Home")
    tab.keyboard.press("ArrowRight")
    assert readout.text_content().startswith("step 4:")  # scored at every second step
    button("Show all").press(" ")
    assert "20 lines" in lines()
    slider.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "step 998"
    # A run has no line at a step before its first measurement.
    depths = tab.locator("div[role=img]")
    assert "pre_ln_1" in str(depths.get_attribute("aria-label"))
    slider.press("Home")
    assert "pre_ln_1" not in str(depths.get_attribute("aria-label"))
