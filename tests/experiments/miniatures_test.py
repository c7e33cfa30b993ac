"""The miniature tasks: slow solvers answer rows, answers are scored, lines give verdicts."""

import itertools
import random
from collections import Counter

import jax
import numpy as np
import pytest

from experiments.harness.sweep import ROOT
from experiments.miniatures import measure, report, rows, solvers, sweep
from tests.experiments.harness.runs import finished
from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.models.family import Outputs
from transformer_jax.run import Run

SIZES = {name: [*map(int, task.name.split())] for name, task in sweep.TASKS.items()}
SIZES["depo"] = [*map(int, sweep.HOPS.split())]  # as rows are as long with one hop


def _samples(task, count=200, scored=True):
    rng = random.Random(0)
    return [getattr(rows, task)(rng, scored, *SIZES[task]) for _ in range(count)]


def _successors(words):
    """Depo's answers, by walking along the edges of a row."""
    opens = words.index("=") - 2
    after = dict(zip(words[1:opens:3], words[2:opens:3], strict=True))
    for steps, name in zip(words[opens::4], words[opens + 1 :: 4], strict=True):
        for _ in range(int(steps)):
            name = after[name]
        yield name


def _value(words):
    """Mano's answer: the expression is read from its end."""
    stack = []
    for word in reversed(words[: words.index("=")]):
        infix = f"({stack.pop()}{word}{stack.pop()})" if word in "+-*" else word
        stack.append(infix)
    return eval(stack.pop()) % rows.MODULUS


@pytest.mark.parametrize("scored", [True, False])
def test_a_solver_answers_all_rows(scored):
    for words in _samples("depo", scored=scored):
        assert words[words.index("=") + 1 :: 4] == [*_successors(words)]
    assert all(int(words[-1]) == _value(words) for words in _samples("mano", scored=scored))
    assert all(map(solvers.is_order, _samples("brevo", scored=scored)))


def test_no_row_is_cut():
    for name, task in sweep.TASKS.items():
        longest = max(len(words) for words in _samples(name, 5_000))
        assert task.length - 8 <= longest + 1 <= task.length, name


def test_a_scored_row_of_mano_has_all_operations():
    counts = [
        {sum(word in "+-*" for word in words) for words in _samples("mano", scored=scored)}
        for scored in (True, False)
    ]
    assert counts == [{3}, {1, 2, 3}]


def test_a_scored_row_of_depo_has_all_names_and_every_hop_in_turn():
    samples = _samples("depo", 2_000)
    names, hops = SIZES["depo"]
    assert {len({*words} & {*rows.NAMES}) for words in samples} == {names}
    counts = Counter(word for words in samples for word in words if word.isdecimal())
    assert sorted(counts) == [str(number) for number in range(1, hops + 1)]
    assert min(counts.values()) > 0.9 * max(counts.values())
    trained = {len({*words} & {*rows.NAMES}) for words in _samples("depo", scored=False)}
    assert trained == {*range(3, names + 1)}


@pytest.mark.parametrize("seed", range(20))
def test_every_order_of_a_recipe_is_accepted_and_nothing_else(seed):
    words = rows.brevo(random.Random(seed), True, 6)
    opens = words.index("=")
    head, answer = words[: opens + 1], words[opens + 1 :]
    edges = [*zip(words[: opens - 2 : 2], words[1 : opens - 2 : 2], strict=True)]
    nodes = {node for edge in edges for node in edge}
    above = {node: {upper for lower, upper in edges if lower == node} for node in nodes}

    def leads(node):
        return node == words[opens - 1] or any(map(leads, above[node]))

    needed = [*filter(leads, nodes)]
    for length in range(len(nodes) + 1):
        for order in itertools.permutations(nodes, length):
            right = sorted(order) == sorted(needed) and all(
                order.index(lower) < order.index(upper)
                for lower, upper in edges
                if {lower, upper} <= {*needed}
            )
            assert solvers.is_order([*head, *order]) == right
    assert not solvers.is_order([*head, *answer, answer[0]])


def _sentences(grammar):
    """Every sentence with its probability, by writing all of them out."""
    sentences = {(0,): 1.0}
    for level in grammar:
        grown: Counter = Counter()
        for row, share in sentences.items():
            for rules in itertools.product(*(level[symbol] for symbol in row)):
                words = tuple(itertools.chain.from_iterable(rules))
                grown[words] += share / 2 ** len(row)
        sentences = grown
    return sentences


def test_next_words_are_those_of_all_sentences():
    grammar = rows.grammar(2)
    shares = _sentences(grammar)
    length = max(map(len, shares))
    table = np.array([[*words, *[-1] * (length - len(words))] for words in shares])
    predictions = solvers.next_words(grammar, table)
    for words, prediction in zip(shares, predictions, strict=True):
        for at in range(len(words) + 1):
            expected = np.zeros(len(rows.LEAVES) + 1)
            for other, share in shares.items():
                if other[:at] == words[:at]:
                    expected[other[at] if len(other) > at else -1] += share
            np.testing.assert_allclose(prediction[at], expected, atol=1e-12)


def test_a_beginning_has_the_probability_of_what_follows_it():
    """In the grammar of the sweep, whose sentences are too many to be written out."""
    (depth,) = SIZES["lano"]
    sentences = [[int(word) - 1 for word in words] for words in _samples("lano", 8)]
    length = max(map(len, sentences))
    predictions = solvers.next_words(
        rows.grammar(depth), np.array([row + [-1] * (length - len(row)) for row in sentences])
    )
    for row, prediction in zip(sentences, predictions, strict=True):
        assert prediction[0].sum() == pytest.approx(1)
        for at, leaf in enumerate(row):
            assert prediction[at + 1].sum() == pytest.approx(prediction[at, leaf])
        assert prediction[len(row), -1] > 0


# What is measured --------------------------------------------------------------------------------


@pytest.fixture
def run(request, tmp_path, forget) -> Run:
    """A small run of a task, Brevo where a test names none, with few rows of its data."""
    task = getattr(request, "param", "brevo")
    (arm,) = [each for each in sweep.sizes(True) if each.labels["task"] == task]
    text = (ROOT / "experiments/miniatures/rows.py").read_text()
    (tmp_path / "rows.py").write_text(text.replace("100_000", "300").replace("256", "16"))
    paths = {"data.cache_dir": str(tmp_path), "rows": str(tmp_path / "rows.py")}
    tiny = {"model.num_layers": 1, "model.d_model": 16, "model.num_heads": 1, "model.d_ff": 16}
    return build(load(str(ROOT / arm.config), {**arm.overrides, **paths, **tiny}))


@pytest.mark.parametrize("run", sweep.TASKS, indirect=True)
def test_a_model_that_knows_every_row_has_all_answers_right(run, monkeypatch):
    truth = measure._validation(run)["targets"]
    answers = [truth, (truth + 1) % run.data.vocab_size]
    for words, accuracy in zip(answers, (1, 0), strict=True):
        logits = 100 * jax.nn.one_hot(words, run.data.vocab_size)
        monkeypatch.setattr(Run, "outputs", lambda *_, logits=logits: (Outputs(logits), ()))
        _, score = measure._TASKS[run.data.settings.source.source](run)
        first, *others = score({})
        assert {row["accuracy"] for row in (first, *others)} == {accuracy}
        assert not others or sum(row["answers"] for row in others) == first["answers"]


def test_the_loss_is_that_of_answers(run):
    batch = measure._validation(run)
    words = measure._names(run)[np.asarray(batch["targets"])]
    mask = np.zeros(words.shape, bool)
    for row, marks in zip(words, mask, strict=True):
        opens, end = ([*row].index(word) for word in ("=", ""))
        marks[opens + 1 : end + 1] = True
    params = run.new_state(batch).params
    outputs, _ = jax.jit(lambda params: run.outputs(params, batch, None, ()))(params)
    every = run.loss.function.each(outputs, batch)
    loss, weight, _ = measure.asking(run, measure.to_the_end).loss(outputs, batch)
    assert weight == mask.sum()
    np.testing.assert_allclose(loss, np.asarray(every)[mask].sum(), rtol=1e-5)


def test_a_model_writes_what_decoding_word_by_word_does(run):
    batch = measure._validation(run)
    params = run.new_state(batch).params
    mask = measure.to_the_end(batch, measure._id(run, "="))
    opened = measure.opened(batch)
    outputs = jax.jit(lambda targets: run.outputs(params, opened | {"targets": targets}, None, ()))
    expected = np.array(batch["targets"])
    for at in np.flatnonzero(np.any(mask, axis=0)):
        best = np.argmax(outputs(expected)[0].arrays()[:, at], axis=-1)
        expected[:, at] = np.where(mask[:, at], best, expected[:, at])
    passes = int(np.max(np.sum(mask, axis=1)))
    tokens = measure.written(run, passes, params, opened, mask)
    np.testing.assert_array_equal(tokens, expected)


# The report --------------------------------------------------------------------------------------


def test_an_interval_of_a_share_holds_what_is_not_rejected():
    for hits, count in ((0, 3), (2, 3), (5, 10)):
        for share in report.wilson(hits, count):
            distance = abs(hits / count - share)
            error = (share * (1 - share) / count) ** 0.5
            assert distance == pytest.approx(1.959964 * error, abs=1e-9)


def _readings(accuracy, seeds=3, of=("all",)):
    return [
        {"seed": seed, "step": step, "of": one, "answers": 1_000}
        | {"accuracy": 0.1 if not step else abs(accuracy + 0.01 * (seed - 1))}
        for seed in range(seeds)
        for step in (0, 100)
        for one in of
    ]


def _depth(by_layers):
    return [
        {"layers": layers, **row}
        for layers, accuracies in by_layers.items()
        for hops, accuracy in accuracies.items()
        for row in _readings(accuracy, of=(str(hops),))
    ]


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({}, ["held", "held"]),
        ({1: {1: 0.95, 2: 0.1, 4: 0.1}}, ["contradicted", "held"]),
        ({2: {1: 0.95, 2: 0.95, 4: 0.95}}, ["held", "contradicted"]),
        ({2: {1: 0.5, 2: 0.1, 4: 0.1}}, ["undecided", "held"]),
        ({3: {}}, ["undecided", "undecided"]),
    ],
)
def test_lines_of_depth(changes, verdicts):
    usual = {n: {hops: 0.95 if 2**n >= 4 * hops else 0.1 for hops in (1, 2, 4)} for n in (1, 2, 3)}
    text, _ = report._depth(_depth(usual | changes))
    assert [line.split("**")[1] for line in text.split("\n\n")] == verdicts


def _arms(accuracy, **more):
    return [
        {"scheme": scheme, "positions": kind, **row}
        for scheme, kind in itertools.product(sweep.SCHEMES, sweep.POSITIONS)
        for row in _readings(accuracy(scheme, kind), **more)
    ]


def test_lines_of_schemes():
    def said(accuracy, **more):
        text, _ = report._schemes(_arms(accuracy, **more))
        return [line.split("**")[1] for line in text.split("\n\n")]

    assert said(lambda scheme, kind: 0.6 + len(scheme) / 1e4) == ["contradicted", "undecided"]
    assert said(lambda scheme, kind: 0.2 + 0.2 * (scheme == "admin")) == ["undecided"] * 2
    assert said(lambda scheme, kind: 0.5 + 0.3 * (scheme == "admin")) == ["held", "undecided"]
    assert said(lambda scheme, kind: 0.5 - 0.2 * (kind == "none"))[1] == "held"
    assert said(lambda scheme, kind: 0.5 + 0.2 * (kind == "none"))[1] == "contradicted"
    assert said(lambda scheme, kind: 0.5 * (kind == "none"), seeds=1) == ["undecided"] * 2


def test_a_training_that_ends_early_answers_nothing():
    early = [row for row in _readings(0.9) if row["seed"] or not row["step"]]
    assert [row["accuracy"] for row in report.last(early, 100)] == [0.0, 0.9, 0.91]


def test_a_report_of_one_seed_is_undecided(tmp_path, undrawn):
    readings = _readings(0.6, seeds=1, of=("all", "1", "2"))
    for name, make in sweep.SWEEPS.items():
        text = report.report([finished(run, readings) for run in make(True)], tmp_path)
        assert "1 of 1 (0.21 to 1.00)" in text
        assert "**held" not in text and "**contradicted" not in text, name
