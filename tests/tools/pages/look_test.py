"""The attention page's data, and the page in a browser that has no network."""

import functools
import shutil
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.defaults import settings
from tests.models import tiny
from tests.tools.pages.page_data import array, data, unreached
from tests.whole.command_line import call
from transformer_jax.data.prepare.tokenizer import SpecialIds, train_tokenizer
from transformer_jax.evaluation.decoder import DecodeSettings
from transformer_jax.inspection.attention import attention
from transformer_jax.tools.pages import look
from transformer_jax.tools.pages.look import chances, labels
from transformer_jax.tools.pages.page import numbers, page
from transformer_jax.tools.pages.positions import by_distance, figures, similarity, turned

WORKDIRS = Path(__file__).parents[2] / "whole/workdirs"
NASTY = ["<script>document.title='bad'</script>", "\"'&", "مرحبا", "</script>", "line\u2028end"]


def test_chances_add_up_and_are_ordered():
    tokenizer = train_tokenizer("words", ["a b c d e f"], 100)
    logits = np.log([[0.5, 0.25, 0.125, 0.0625, 0.0625]]) + 7
    (chance,) = chances(tokenizer, np.asarray(logits), [2])
    np.testing.assert_allclose(chance["probability"], 0.125)
    assert chance["rank"] == 3
    np.testing.assert_allclose([p for _, p in chance["best"]], [0.5, 0.25, 0.125, 0.0625, 0.0625])


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_every_token_has_a_label_that_is_seen(kind):
    tokenizer = train_tokenizer(kind, ["a ü\tb"], 300)
    ids = list(range(tokenizer.vocab_size))
    names = labels(tokenizer, ids)
    assert all(label.strip() and label.isprintable() and "\ufffd" not in label for label in names)
    assert {"U+0000", "U+001B", "␣"} <= set(names) or kind == "words"


def test_a_text_of_carried_states_is_read_in_segments():
    """Though there is nowhere that they look: what is written has the chances of one pass."""
    config, of = tiny.recurrent("lstm", "decoder_only", stateful=True), types.SimpleNamespace
    params, ((_, document),) = tiny.random_parameters(config), tiny.sentences((1, 10))
    shapes: Any = tiny.family_of(config).memory(config, 1, None)
    observe = jax.jit(functools.partial(attention, tiny.model(config)))

    def pass_over(ids, width, memory, start):
        batch = tiny.pack([[(ids["targets"], ids["targets"])]], width, width)
        batch["targets_positions"] += start
        return observe(params, tiny.read_by(config, batch), memory)

    run: Any = of(data=of(settings=of(rows={"target": 4})))
    memory = {name: np.zeros(shape.shape, shape.dtype) for name, shape in shapes.items()}
    logits, looks = look._in_segments(run, document.tolist(), pass_over, memory)
    assert looks == {}
    plain = tiny.recurrent("lstm", "decoder_only")
    (expected,) = tiny.apply_function(plain)(params, tiny.pack([[(document, document)]], 10, 10))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("room", "end"), [(3, []), (4, []), (5, [1])])
def test_what_ends_for_lack_of_room_is_shown_without_an_end(room, end):
    """Of three written tokens where there is room for so many, the end included."""
    prompt = {"inputs": np.array([[2, 8, 9]]), "inputs_segment_ids": np.ones((1, 3), int)}
    of = types.SimpleNamespace
    run: Any = of(
        data=of(prompts=lambda lines: [(prompt, [0])], special=of(eos=1)),
        model=of(config=of(architecture="decoder_only")),
    )
    samples = settings(DecodeSettings, "decode", method="sample", num_samples=4)
    trained: Any = of(
        writer=of(settings=samples, most_written=lambda tokens: np.full_like(tokens, room)),
        writing=lambda settings: of(generate=lambda _: [[[5, 6, 7]] * settings.num_samples]),
    )
    (text,) = look._texts(run, trained, ["a b"])
    assert text.targets == [8, 9, 5, 6, 7, *end] and text.given == 2


def test_a_text_ends_with_the_likeliest_of_the_ids_that_end_one():
    special = SpecialIds(eos=1, other_eos=(4,))
    logits = np.array([[9.0, 9, 9, 9, 0], [9, 1, 9, 9, 2]])
    (ended, cut) = (
        look._with_its_end(look.Text("a", None, targets), logits, special).targets
        for targets in ([3, 1], [3, 2])
    )
    assert ended == [3, 4] and cut == [3, 2]


def test_logits_that_are_not_finite_are_told_with_their_line(monkeypatch):
    monkeypatch.setattr(look, "_observe", lambda *_: (np.array([[0.0, np.nan]]), {}))
    run: Any = None
    with pytest.raises(ValueError, match="logits of 'a b' are not finite.*earlier --checkpoint"):
        look.views(run, run, [look.Text("a b", None, [1])])


@pytest.mark.parametrize("kind", tiny.POSITIONS)
def test_positions_of_every_kind_are_shown_in_finite_numbers(kind):
    config = tiny.config(positions=kind)
    plots = figures(config, tiny.random_parameters(config), 12)
    assert plots
    for each in plots:
        parts = each["lines"].values() if "lines" in each else [each["values"]]
        assert all(np.isfinite(array(part)).all() for part in parts)


def test_rotations_of_layers_with_and_without_a_window_are_both_shown():
    layers = dict(layer_pattern=("window", "full"), window=3, window_rotary_base=50.0)
    products = [
        f["values"] for f in figures(tiny.config(positions="rotary", **layers), {}, 12)[::2]
    ]
    for product, base in zip(products, (10_000.0, 50.0), strict=True):
        np.testing.assert_allclose(array(product), turned(8, 64, base), atol=1e-3)


def test_rotary_products_depend_on_distance_as_rotations_do():
    """A query and a key that agree, turned by their positions, multiplied pair by pair."""
    expected = [[np.cos(t * 10000.0 ** (-2 * i / 8)) for i in range(4)] for t in range(9)]
    np.testing.assert_allclose(turned(8, 9, 10000.0), expected, atol=1e-5)


def test_similarity_is_the_cosine_and_its_mean_by_distance():
    vectors = np.array([[1.0, 0], [1, 1], [0, 2]])
    matrix = similarity(vectors)
    np.testing.assert_allclose(matrix[0], [1, 0.5**0.5, 0], atol=1e-12)
    np.testing.assert_allclose(by_distance(matrix), [1, 0.5**0.5, 0], atol=1e-12)


def _synthetic(layers, heads, length, words, weights=None, **changes):
    if weights is None:
        weights = np.random.default_rng(0).random((layers, heads, length, length), np.float32)
        weights /= weights.sum(-1, keepdims=True)
    tokens = [words[i % len(words)] for i in range(length)]
    one = {
        "name": "Decoder",
        "rows": "targets",
        "columns": "targets",
        "weights": numbers(weights),
        "entropy": np.ones((layers, heads)).tolist(),
        "largest_logit": None,
    }
    chance = {"probability": 0.5, "rank": 1, "best": [[word, 0.1] for word in words]}
    text = {"line": " ".join(words), "maps": [one], "given": 2, "targets": tokens}
    text |= {"written": tokens, "chances": [chance] * length}
    text |= changes
    positions = figures(tiny.config(), {}, 12)
    content = {"texts": [text, text | {"line": "second"}], "positions": positions}
    return page(words[0], content, styles=["look.css"], scripts=look.SCRIPTS)


def test_the_page_of_144_heads_and_100_tokens_weighs_less_than_10_mb():
    text = _synthetic(12, 12, 100, ["a", "b"])
    # The second text stands for itself.
    assert len(text.encode()) / 2 < 10e6


@pytest.mark.long
def test_texts_of_any_kind_are_texts_and_mouse_and_keys_switch(opened):
    tab = opened(_synthetic(2, 3, 5, NASTY))
    title = tab.locator("#one-head")
    assert tab.title() == NASTY[0] and tab.locator("h1").inner_text() == NASTY[0]
    group = tab.get_by_role("group", name="Queries")
    words = group.get_by_role("button").all_text_contents()
    assert [word.strip() for word in words] == [word.strip() for word in NASTY]
    heads = {"ArrowDown": "head 1", "ArrowLeft": "head 3", "m": "mean of heads"}
    for key, expected in heads.items():
        tab.keyboard.press(key)
        assert title.inner_text() == f"Decoder: layer 2, {expected}"
    tab.get_by_role("button", name="Layer 2, head 2").click()
    assert title.inner_text() == "Decoder: layer 2, head 2"
    group.get_by_role("button").nth(2).click()
    assert NASTY[2] in tab.locator("#said").inner_text()
    weights = np.random.default_rng(0).random((2, 3, 5, 5), np.float32)
    weights /= weights.sum(-1, keepdims=True)
    buttons = tab.get_by_role("group", name="Keys").get_by_role("button")
    titles = [buttons.nth(i).get_attribute("title") for i in range(5)]
    np.testing.assert_allclose([float(x) for x in titles], weights[1, 1, 2], atol=5.1e-5)
    tab.get_by_role("group", name="Written tokens").get_by_role("button").nth(3).click()
    assert "probability 0.5000" in tab.locator("#runners-up").inner_text()
    tab.keyboard.press("n")
    assert tab.locator("#line").inner_text() == "second"
    with tab.expect_download() as download:
        tab.keyboard.press("s")
    svg = Path(download.value.path()).read_text("utf-8")
    assert svg.startswith("<svg") and "data:image/png" in svg and "<script" not in svg


@pytest.mark.long
@pytest.mark.parametrize("kind", ["bpe", "unigram", "bytes"])
def test_pieces_are_joined_to_words_and_what_a_mask_hides_is_not_listed(kind, opened):
    line = "dogs bark, überall 你好"
    tokenizer = train_tokenizer(kind, ["do gs ba rk , üb er all 你 好"] * 9, 60)
    ids = [tokenizer.special.bos, *tokenizer.encode([line])[0]]
    size = len(ids)
    weights = np.tril(np.random.default_rng(0).uniform(1, 2, (size, size))).astype("f4")
    weights /= weights.sum(-1, keepdims=True)
    sides = {"targets": labels(tokenizer, ids), "spans": {"targets": tokenizer.spans(ids)}}
    tab = opened(_synthetic(1, 1, size, ["a"], weights[None, None], chances=None, **sides))
    queries, keys = (tab.get_by_role("group", name=name) for name in ("Queries", "Keys"))
    words = queries.get_by_role("button").all_text_contents()
    assert words == ["<bos>", "dogs", "bark", ",", "überall", "你好"]
    ends = [end or 0 for end in sides["spans"]["targets"]["ends"]]
    before = [line.find(word) - (f" {word}" in line) for word in words[2:]]
    starts = [0, 1, *np.searchsorted(ends, before, "right")]
    of_words = np.add.reduceat(np.add.reduceat(weights, starts, 1), starts, 0)
    of_words /= np.diff([*starts, size])[:, None]
    for row, expected in enumerate(of_words):
        queries.get_by_role("button").nth(row).click()
        titles = [key.get_attribute("title") or "" for key in keys.get_by_role("button").all()]
        shares = [float(title.replace("not seen", "0")) for title in titles]
        np.testing.assert_allclose(shares, expected, atol=1e-4)
        looked_at = tab.locator("#said").inner_text().partition(";")[0]
        assert not any(f"\u2068{word}\u2069" in looked_at for word in words[row + 1 :])
    tab.keyboard.press("w")
    assert queries.get_by_role("button").count() == size
    # Where no query is a word, the surest look is told all the same.
    tab = opened(_synthetic(1, 1, 2, ["?", "!"], np.array([[[[0.4, 0.6], [0.1, 0.9]]]], "f4")))
    assert "with 0.90 of its weight" in tab.locator("#finding").inner_text()


@pytest.mark.long
def test_a_model_without_attention_shows_what_it_writes(opened):
    tab = opened(_synthetic(1, 1, 3, ["a", "b"], maps=[]))
    text = tab.locator("main").inner_text()
    assert "no attention" in text and "What it writes" in text
    assert "layers and heads" not in text and "entropy" not in text.lower()
    tab.keyboard.press("s")  # there is nothing to save, and no error
    tab.get_by_role("group", name="Written tokens").get_by_role("button").nth(1).click()
    assert "probability 0.5000" in tab.locator("#runners-up").inner_text()


@pytest.mark.long
@pytest.mark.parametrize("name", ["translation", "language_model", "classification"])
def test_the_command_writes_a_page_that_opens(name, tmp_path, monkeypatch, opened):
    """Of a trained model of each architecture."""
    monkeypatch.setenv("HOME", str(tmp_path))  # of data.cache_dir
    shutil.copytree(WORKDIRS / name, tmp_path / name)
    lines, out = tmp_path / "lines", tmp_path / "look.html"
    lines.write_text("a e\n\nb <script> f\n")
    flags = f"--workdir={tmp_path / name}", f"--input={lines}", f"--output={out}"
    assert call("--mode=look", *flags) == 0
    tab = opened(out.read_text())
    # Two layers of two heads, the sharpest first: it is open, and what it shows is said.
    heads = tab.locator(".heads button")
    sharpness = np.array(data(out.read_text())["texts"][0]["maps"][-1]["entropy"])
    order = [f"Layer {at // 2 + 1}, head {at % 2 + 1}" for at in np.argsort(sharpness.ravel())]
    assert [heads.nth(at).get_attribute("aria-label") for at in range(4)] == order
    assert order[0].lower() in tab.locator("#one-head").inner_text()
    assert order[0].lower() in tab.locator("#finding").inner_text().replace("\xa0", " ")
    assert unreached(tab) == []
