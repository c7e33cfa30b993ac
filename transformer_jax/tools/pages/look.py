"""The page that shows where a model's tokens look: what it holds of each input."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence, Sized
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer_jax.data.prepare.tokenizer import SpecialIds, Tokenizer
from transformer_jax.data.serve.batches import pad
from transformer_jax.devices.mesh import constrain
from transformer_jax.evaluation.trained import Trained
from transformer_jax.inspection.attention import Looks, attention
from transformer_jax.process import progress
from transformer_jax.run import Run
from transformer_jax.tools.pages import positions
from transformer_jax.tools.pages.page import numbers, page

_NAME = re.compile("^< (.+) >$")  # how a vocabulary here keeps its names out of all texts
_BLANKS = {"\n": "↵", "\t": "⇥", " ": "␣"}
SCRIPTS = ("plots.js", "words.js", "finding.js", "look.js")
RUNNERS_UP = 5  # the likeliest tokens that are shown of each place
_NAMES = {
    ("encoder", "self_attention"): "Encoder",
    ("decoder", "self_attention"): "Decoder",
    ("decoder", "cross_attention"): "Cross (decoder to encoder)",
}


class Text(NamedTuple):
    """One input, as token ids.

    Attributes:
      inputs: what the encoder reads; None: there is no encoder.
      targets: what the decoder writes, the prompt of a language model included; None: no decoder.
      given: how many of the targets were given.
    """

    line: str
    inputs: list[int] | None
    targets: list[int] | None
    given: int = 0


def look(run: Run, trained: Trained, lines: Sequence[str], title: str) -> str:
    """The page as HTML. Lines that hold nothing but blanks are left out.

    Raises:
      ValueError: no line is left.
    """
    if not (lines := [line for line in lines if line.strip()]):
        raise ValueError("nothing to look at: --input has no line that holds a word")
    texts = _texts(run, trained, lines)
    data = {
        "texts": views(run, trained, texts),
        "positions": positions.figures(run.model.config, trained.params, _longest(texts)),
    }
    return page(title, data, styles=["look.css"], scripts=SCRIPTS)


def _texts(run: Run, trained: Trained, lines: Sequence[str]) -> list[Text]:
    """What the model reads and writes of each line, as `trained.writer` does."""
    batches = run.data.prompts(lines)
    prompts: list[list[int]] = [[] for _ in lines]
    for batch, places in batches:
        for row, number in enumerate(places):
            if number >= 0:
                real = batch["inputs_segment_ids"][row] > 0
                prompts[number] = batch["inputs"][row][real].tolist()
    architecture = run.model.config.architecture
    if architecture == "encoder_only":
        return [Text(line, ids, None) for line, ids in zip(lines, prompts, strict=True)]
    once = dataclasses.replace(trained.writer.settings, num_samples=1)
    written = [ids for (ids,) in trained.writing(once).generate(batches)]
    texts = []
    for line, prompt, ids in zip(lines, prompts, written, strict=True):
        most = int(trained.writer.most_written(np.array([len(prompt)]))[0])
        # What ends for lack of room does not end by a choice of the model.
        ended = [run.data.special.eos] * (len(ids) + 1 < most)
        if architecture == "encoder_decoder":
            texts.append(Text(line, prompt, ids + ended))
        else:
            texts.append(Text(line, None, prompt[1:] + ids + ended, len(prompt) - 1))
    return texts


def views(run: Run, trained: Trained, texts: Sequence[Text]) -> list[dict[str, Any]]:
    """What the page holds of each text: its tokens, weights, and the chances of what is written."""
    longest = _longest(texts)

    @jax.jit
    def passed(params: Any, batch: Any, memory: Any) -> tuple[Any, ...]:
        return jax.tree.map(constrain, attention(run.model, params, batch, memory))

    entries = []
    with progress.phase("Looking"):
        for text in texts:
            logits, looks = _observe(run, trained, text, longest, passed)
            check_finite(logits, text.line)
            entries.append(_view(run, _with_its_end(text, logits, run.data.special), logits, looks))
    return entries


def check_finite(logits: Any, line: str) -> None:
    """Raises ValueError where what the model says of an input is no number."""
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(logits)):
        raise ValueError(
            f"the model's logits of {line!r} are not finite, so that there is nothing to show: "
            "choose an earlier --checkpoint"
        )


def _with_its_end(text: Text, logits: Float[np.ndarray, "T V"], special: SpecialIds) -> Text:
    """A text that ends, with the likeliest of the ids that end one: which it was is not kept."""
    if not text.targets or text.targets[-1] != special.eos:
        return text
    end = max(special.ends, key=lambda one: logits[-1, one])
    return text._replace(targets=[*text.targets[:-1], end])


def _longest(texts: Sequence[Text]) -> int:
    return max(max(len(ids) for ids in (text.inputs, text.targets) if ids) for text in texts)


def _observe(
    run: Run, trained: Trained, text: Text, longest: int, passed: Any
) -> tuple[Float[np.ndarray, "T V"], dict[Any, Looks]]:
    """The logits, and looks without the axis of rows, over the text's own tokens alone.

    A model with memory reads a text in segments as long as its rows of training. What its queries
    give to places of the memory is theirs that they give to the tokens which lie there.
    """
    names = {"inputs": text.inputs, "targets": text.targets}
    ids = {name: row for name, row in names.items() if row is not None}
    columns = {name: run.data.settings.recipe.columns.get(name) for name in ids}
    devices = run.mesh.shape["data"] * run.mesh.shape["fsdp"]
    most = run.model.config.longest_row or longest + 8
    # A few lengths, so that few programs are compiled.
    width = min(8 * math.ceil(longest / 8), max(most, longest))

    def pass_over(ids: dict[str, list[int]], width: int, memory: Any = (), start: int = 0) -> Any:
        nothing = dict.fromkeys(ids, ())
        rows = [ids] + [nothing] * (devices - 1)
        batch = pad(rows, columns, dict.fromkeys(ids, width))  # pyright: ignore
        for name in ids:
            batch[f"{name}_positions"] += start * batch[f"{name}_segment_ids"]
        return jax.device_get(passed(trained.params, batch, memory))

    shapes = trained.memory(devices)
    memory = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    if not memory:
        logits, looks, _ = pass_over(ids, width)
        last = "inputs" if text.targets is None else "targets"
        return logits[0, : len(ids[last])], of_first(looks, ids)
    return _in_segments(run, ids["targets"], pass_over, memory)


def _sides(place: tuple[str, str]) -> tuple[str, str]:
    """The columns whose tokens are the queries and the keys."""
    stack, kind = place
    queries = "inputs" if stack == "encoder" else "targets"
    return queries, "inputs" if kind == "cross_attention" else queries


def of_first(looks: dict[Any, Looks], ids: Mapping[str, Sized]) -> dict[Any, Looks]:
    """Looks of the first row's real tokens, as many as `ids` has, without the axis of rows."""
    cut = {}
    for place, heads in looks.items():
        rows, columns = (len(ids[side]) for side in _sides(place))
        real = jax.tree.map(lambda leaf, rows=rows: leaf[:, 0, :, :rows], heads)
        cut[place] = real._replace(weights=real.weights[..., :columns])
    return cut


def _in_segments(
    run: Run, targets: list[int], pass_over: Any, memory: Any
) -> tuple[Float[np.ndarray, "T V"], dict[Any, Looks]]:
    """The whole text from its segments, one after the other."""
    length, places = run.data.settings.rows["target"], memory["real"].shape[1]
    total, all_logits, parts = len(targets), [], []
    for start in range(0, total, length):
        ids = targets[start : start + length]
        logits, looks, memory = pass_over({"targets": ids}, length, memory, start)
        all_logits.append(logits[0, : len(ids)])
        if not looks:  # of recurrent layers
            continue
        heads, end = looks["decoder", "self_attention"], start + len(ids)
        # The memory's last place holds the token before the segment.
        before = min(start, places)
        block = heads.weights[:, 0, :, : len(ids), places - before : places + len(ids)]
        weights = np.zeros((*block.shape[:3], total), np.float32)
        weights[..., start - before : end] = block
        real = np.s_[:, 0, :, : len(ids)]
        parts.append((weights, heads.entropy[real], heads.largest_logit[real]))
    if not parts:
        return np.concatenate(all_logits), {}
    whole: Any = (np.concatenate(values, axis=2) for values in zip(*parts, strict=True))
    return np.concatenate(all_logits), {("decoder", "self_attention"): Looks(*whole)}


def _view(
    run: Run, text: Text, logits: Float[np.ndarray, "T V"], looks: dict[Any, Looks]
) -> dict[str, Any]:
    tokenizer, special = run.data.tokenizer, run.data.special
    sides = {} if text.inputs is None else {"inputs": text.inputs}
    if text.targets is not None:
        # A decoder's query has read the token before the one that it writes.
        sides |= {"targets": [special.bos, *text.targets[:-1]], "written": text.targets}
    view = {"line": text.line, "maps": maps(looks), "given": text.given}
    view |= {side: labels(tokenizer, ids) for side, ids in sides.items()}
    view["spans"] = {side: tokenizer.spans(ids) for side, ids in sides.items()}
    if text.targets is not None:
        view["chances"] = chances(tokenizer, logits, text.targets)
    if run.data.settings.contiguous:
        view["segment"] = run.data.settings.rows["target"]
    return view


def maps(looks: dict[Any, Looks]) -> list[dict[str, Any]]:
    """What the page holds of each kind of attention, from looks without the axis of rows."""
    entries = []
    for place, name in _NAMES.items():
        if place not in looks:
            continue
        heads, (rows, columns) = looks[place], _sides(place)
        entropy, largest = np.mean(heads.entropy, axis=-1, dtype=np.float64), heads.largest_logit
        if largest is not None:
            largest = np.max(largest, axis=-1).astype(np.float64).round(4).tolist()
        entries.append(
            {
                "name": name,
                "rows": rows,
                "columns": columns,
                "weights": numbers(np.asarray(heads.weights)),
                "entropy": entropy.round(4).tolist(),
                "largest_logit": largest,
            }
        )
    return entries


def chances(
    tokenizer: Tokenizer, logits: Float[np.ndarray, "T V"], targets: Sequence[int]
) -> list[dict[str, Any]]:
    """The probability of each target given those before it, its rank from 1, and the likeliest."""
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    entries = []
    for row, target in zip(probabilities, targets, strict=True):
        best = np.argsort(-row, kind="stable")[:RUNNERS_UP]
        names = labels(tokenizer, best.tolist())
        entries.append(
            {
                "probability": float(row[target]),
                "rank": int(np.sum(row > row[target])) + 1,
                "best": [[name, float(row[i])] for name, i in zip(names, best, strict=True)],
            }
        )
    return entries


def labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What a reader sees of tokens: their text, or their names where they are no text."""
    texts = []
    for number in ids:
        text = tokenizer.decode([number])
        if not text or "\ufffd" in text:
            text = tokenizer.token(number) or f"#{number}"
        text = _NAME.sub(r"<\1>", text)
        blank = not text.strip()
        texts.append("".join(_glyph(character, blank) for character in text))
    return texts


def _glyph(character: str, blank: bool) -> str:
    """A character as a reader sees it. blank: whether there are only spaces around it."""
    if character in _BLANKS and (blank or character != " "):
        return _BLANKS[character]
    return character if character.isprintable() else f"U+{ord(character):04X}"
