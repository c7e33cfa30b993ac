"""What a run takes of memory: by shapes before anything is allocated, and by its compiled step.

What cannot fit is refused, in one line that names the settings which decide it. Shapes are traced
and no array is made, so that a run of any size gets an answer.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.data.serve.streams import PACKING_BINS
from transformer_jax.devices.memory import Need, check_program, place
from transformer_jax.evaluation.decoder import DecodeSettings, prompt_shapes
from transformer_jax.evaluation.generate import rooms_of
from transformer_jax.models.layers.settings import DTYPES
from transformer_jax.process import machine, progress, tables
from transformer_jax.run import Run
from transformer_jax.training.step import StepFn

_AHEAD = 3  # training batches at a time: one in use and two ready
_SHORTEST = 8  # tokens that rows to score and prompts are padded to at least
# From so many bytes on of a batch and its tokens, what the model makes of them is worth tracing: it
# may be a hundred times as much. Ordinary runs start faster without.
_WORTH_TRACING = 2**28
_WORD = 4  # bytes of a token and of a float32
_SIZES = "vocab_size d_model d_ff num_heads head_dim max_length".split()

# What is in memory at least while a run trains, scores or decodes, by these names. Each lists what
# is known at once before what takes tracing.
Phases = Mapping[str, Iterator[Need]]


def check(run: Run, phases: Phases) -> None:
    """Raises ValueError where one of the phases cannot fit into memory."""
    for _, message in _weighed(run, phases):
        if message is not None:
            raise ValueError(message)


def table(run: Run) -> Iterator[str]:
    """Yields the lines of a table of what training, scoring and decoding take at least."""
    where, phases = place(run.mesh), train(run)
    needs, messages = zip(*_weighed(run, phases), strict=True)
    share = where.share if where else 1 / run.mesh.size
    rows = [["", *phases]]
    for name in dict.fromkeys(need.name for need in itertools.chain(*needs)):
        sizes = [sum(need.size for need in part if need.name == name) for part in needs]
        rows.append([name, *(machine.size(share * size) if size else "" for size in sizes)])
    sums = (sum(need.size for need in part) for part in needs)
    yield from tables.aligned([*rows, ["sum", *(machine.size(share * size) for size in sums)]])
    if where is not None:
        whole, free = machine.size(where.whole), machine.size(where.free)
        yield f"{where.name} has {whole}, of which {free} are free"
    yield from itertools.islice(filter(None, messages), 1)


def compiled_step(run: Run, step: StepFn | None = None, *, begins: bool = False) -> StepFn:
    """The training step, or another one of the same shapes, compiled for the mesh in use.

    begins: whether training begins with a new state, whose program is compiled at the same time.

    Raises ValueError where it needs more memory than there is.
    """
    jitted: Any = step or run.train_step()
    with progress.phase("Compiling the training step"), ThreadPoolExecutor(1) as pool:
        lowered = jitted.lower(run.abstract_state, run.abstract_batch())
        compiling = pool.submit(lowered.compile)
        if begins:
            run.compile_new_state()
        compiled = compiling.result()
    machine.give_back_freed_memory()  # compiling took hundreds of MB, which no step needs
    check_program("training", compiled, _batch_settings(run), in_memory=False)
    return compiled


def train(run: Run) -> Phases:
    """Training steps, and the scores of splits."""
    return {"training": _training(run), **evaluate(run)}


def replay(run: Run) -> Phases:
    """Training steps, and the state before each of them."""
    return {"training": itertools.chain(_training(run), _state(run))}


def evaluate(run: Run) -> Phases:
    """The scores of a split."""
    if run.task.scored is None:
        return embed(run)
    data = run.data.settings
    decode, prompt = run.task.scored(run.decode, data.max_prompt_length)
    return {**embed(run), "decoding": _decoding(run, decode, prompt, data.evaluation_batch_size)}


def generate(run: Run, rows: int | None = None) -> Phases:
    """The results of batches of lines, of so many rows where it is not evaluate.batch_size."""
    if run.task.limit is None:
        return embed(run)
    data = run.data.settings
    rows = data.evaluation_batch_size if rows is None else rows
    return {"decoding": _decoding(run, run.decode, data.max_prompt_length, rows)}


def embed(run: Run) -> Phases:
    """What a model makes of batches of lines."""
    return {"scoring": _scoring(run)}


def _weighed(run: Run, phases: Phases) -> Iterator[tuple[list[Need], str | None]]:
    """Yields the needs of each phase and None, or those that are too large and what says so."""
    where = place(run.mesh)
    for name, needs in phases.items():
        known: list[Need] = []
        message = None
        for need in needs:
            known.append(need)
            if where and (message := where.refusal(name, known)):
                break
        yield known, message


def _training(run: Run) -> Iterator[Need]:
    if (dtype := run.evaluate.parameter_dtype) != "float32":
        raise ValueError(
            f"evaluate.parameter_dtype={dtype!r} is for a checkpoint that is asked (evaluate, "
            "generate, embed, look): training, and what it scores, needs 'float32'"
        )
    data, rows = run.data.settings, _AHEAD * run.data.settings.batch_size
    if data.packing and run.mesh.devices.flat[0].platform == "cpu":
        rows += data.streams * PACKING_BINS
    row = _bytes(run.abstract_batch(), run.mesh) / data.batch_size
    yield Need("batches", rows * row, _batch_settings(run))
    yield from _state(run)


def _state(run: Run) -> Iterator[Need]:
    """What training carries, as it is sharded; the parameters first."""
    state, config = run.abstract_state, run.model.config
    largest = max(jax.tree.leaves(state.params), key=lambda leaf: leaf.size)
    sizes = {name: getattr(config, name, None) for name in _SIZES}
    settings = {f"model.{name}": size for name, size in sizes.items() if size in largest.shape}
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    if encoder == decoder:
        settings["model.num_layers"] = encoder
    else:
        settings |= {"model.num_encoder_layers": encoder, "model.num_decoder_layers": decoder}
    others = {"optimizer state": state.opt_state, "moving average": state.ema_params}
    for name, tree in {"parameters": state.params, **others}.items():
        if size := _bytes(tree, run.mesh):
            yield Need(name, size, _largest(settings))
    if state.memory:
        key = run.family.memory_key
        settings = {"data.batch_size": run.data.settings.batch_size}
        settings[f"model.{key}"] = getattr(config, str(key))
        yield Need("memory", _bytes(state.memory, run.mesh), _largest(settings))


def _scoring(run: Run) -> Iterator[Need]:
    rows, config = run.data.settings.evaluation_batch_size, run.model.config

    def size(array: Any) -> int:
        _, length, *others = array.shape
        return math.prod((rows, min(length, _SHORTEST), *others)) * array.dtype.itemsize

    settings = f"evaluate.batch_size={rows}"
    yield Need("batches", sum(map(size, run.abstract_batch().values())), settings)
    yield Need("vectors", _WORD * rows * _SHORTEST * config.d_model, settings)
    yield _parameters(run)


def _parameters(run: Run) -> Need:
    """The parameters, as those of a checkpoint that is asked are held."""
    need = next(_state(run))
    return need._replace(size=need.size * DTYPES[run.evaluate.parameter_dtype].itemsize / _WORD)


def _decoding(run: Run, decode: DecodeSettings, prompt: int, rows: int) -> Iterator[Need]:
    decoder, prompt = run.trained(None).writing(decode).writer, min(prompt, _SHORTEST)
    length = decoder.longest(prompt)
    name = "beam_size" if decode.method == "beam" else "num_samples"
    hypotheses = getattr(decode, name)
    settings = {f"decode.{name}": hypotheses, "decode.extra_length": decode.extra_length}
    settings |= {"evaluate.batch_size": rows} if rows > 1 else {}
    tokens = _WORD * rows * hypotheses * length
    logits = _WORD * rows * hypotheses * run.model.config.vocab_size
    yield Need("decoded tokens", tokens, _largest(settings))
    vocabulary = {"model.vocab_size": run.model.config.vocab_size}
    yield Need("logits", logits, _largest(settings | vocabulary))
    yield _parameters(run)
    if tokens + logits >= _WORTH_TRACING:
        begin = functools.partial(decoder.begin, room=rooms_of(length)[0], length=length)
        limits = jax.ShapeDtypeStruct((rows,), "int32")
        params, inputs = run.abstract_state.params, prompt_shapes(rows, prompt)
        context, state = jax.eval_shape(begin, params, inputs, limits)
        yield Need("decoding cache", _bytes((context, state.cache)), _largest(settings))


def _batch_settings(run: Run) -> str:
    """The settings that decide the size of a training batch."""
    data = run.data.settings
    return _largest({"data.batch_size": data.batch_size, **data.row_settings})


def _largest(settings: Mapping[str, Any]) -> str:
    """The largest settings, as "model.d_ff=2048, model.d_model=512 or model.num_layers=6"."""
    ordered = sorted(settings.items(), key=lambda item: -item[1])
    *others, last = [f"{name}={value}" for name, value in ordered[:3]]
    return f"{', '.join(others)} or {last}" if others else last


def _bytes(tree: Any, mesh: Mesh | None = None) -> int:
    """Bytes of arrays; with a mesh, on all its devices, each as often as it is there."""

    def size(leaf: Any) -> int:
        shape = leaf.sharding.shard_shape(leaf.shape) if mesh else leaf.shape
        return math.prod(shape) * leaf.dtype.itemsize

    return (mesh.size if mesh else 1) * sum(map(size, jax.tree.leaves(tree)))
