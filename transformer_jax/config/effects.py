"""Which settings have no effect with the others, so that none is ignored in silence.

The tables' rows name what they read; `_choices` collects them by the setting that chooses a row.
What was given on the command line is refused, what a config file sets is told.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from transformer_jax import tasks
from transformer_jax.config import build_data
from transformer_jax.config.kinds import Kind, parse, show
from transformer_jax.config.load import changes
from transformer_jax.configs import default
from transformer_jax.configs.default import Config
from transformer_jax.data.prepare.tokenizer import TOKENIZERS
from transformer_jax.data.read.sources import PAIRS, SOURCES
from transformer_jax.evaluation.decoder import METHODS
from transformer_jax.models import FAMILIES
from transformer_jax.models.layers.norm import NORMS
from transformer_jax.models.layers.positions import POSITIONS
from transformer_jax.models.layers.settings import ARCHITECTURES, UNORDERED
from transformer_jax.models.layers.stems import STEMS
from transformer_jax.models.transformer.draws import DRAWS
from transformer_jax.models.transformer.parameterizations import PARAMETERIZATIONS
from transformer_jax.models.transformer.schemes import SCHEMES
from transformer_jax.runs.workdir import flatten
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.task import Task
from transformer_jax.training.cross_entropy import METRICS
from transformer_jax.training.schedule import SCHEDULES
from transformer_jax.training.update_rules import OPTIMIZERS, SLOW_HALF_LIFE


def check(config: Config, changes: Iterable[str]) -> None:
    """Checks that what was given has an effect, or is the default anyway.

    changes: the keys, or "KEY=VALUE" texts, as of a command line.

    Raises:
      ValueError: naming the keys, and what they have no effect with.
    """
    keys = {text.partition("=")[0] for text in changes}
    if refused := _without_effect(config, keys):
        raise ValueError(f"{refused}: leave out what has no effect, or change the other")


def notes(config: Config) -> list[str]:
    """What is to say of a config before it is trained with: a line each."""
    lines, steps, optimizer = [], config.train.steps, config.optimizer
    task = tasks.choose(config.task.name, config.model.architecture)
    start = config.checkpoint.init_from
    if start and task.recipe.tokenized:
        lines.append(
            f"data.tokenizer has no effect: the tokenizer is that of checkpoint.init_from={start!r}"
        )
    keys = {key for key in flatten(config) if not (start and key.startswith("data.tokenizer."))}
    if ignored := _without_effect(config, keys):
        lines.append(ignored)
    sides = "data.source_language", "data.target_language"
    for part in _own_of_parts(config, task) or [{}]:
        source, target = (part.get(side, config.data[side[5:]]) for side in sides)
        if source == target and task.recipe.reads == PAIRS:
            lines.append(f"{' and '.join(sides)} are {source!r}: the input holds the answer")
    draw, scale = DRAWS[config.model.init], config.model.embedding_scale
    if draw and not draw.scaled and scale is None and not task.recipe.reads_images:
        lines.append(
            f"model.init={config.model.init!r} is of code that multiplies no rows of embeddings, "
            f"and model.embedding_scale=None multiplies them by {config.model.d_model**0.5:.4g}: 1 "
            "is what goes with it"
        )
    if optimizer.name == "ademamix" and 0.5 ** (1 / (SLOW_HALF_LIFE * steps)) < optimizer.beta1:
        lines.append(
            f"optimizer.name='ademamix' has a slow momentum that ends with a half-life of "
            f"{SLOW_HALF_LIFE * steps:.3g} steps at train.steps={steps}, less than that of "
            f"optimizer.beta1={optimizer.beta1}: it is made for longer training"
        )
    if optimizer.burn_in_steps + optimizer.warmup_steps >= steps:
        named = f"optimizer.warmup_steps={optimizer.warmup_steps}"
        if optimizer.burn_in_steps:
            named = f"{named}, after optimizer.burn_in_steps={optimizer.burn_in_steps},"
        lines.append(
            f"{named} is not less than train.steps={steps}: the learning rate grows up to the last "
            "step"
        )
    return lines


def _without_effect(config: Config, keys: Collection[str]) -> str:
    """Says which of the keys are no default and have no effect, and why; "" if none."""
    unused, reasons = _unused(config), {}
    for key, (_, value) in changes(_DEFAULTS, config).items():
        if key in keys and key in unused:
            reasons.setdefault(unused[key], []).append(f"{key}={show(value)}")
    return "; ".join(
        f"{' and '.join(named)} {'has' if len(named) == 1 else 'have'} no effect {reason}"
        for reason, named in reasons.items()
    )


def _unused(config: Config) -> dict[str, str]:
    """The keys that have no effect, and why: "with decode.method='beam', only with 'sample'"."""
    unused = {}
    for name, (value, readers) in _choices(config).items():
        if value not in readers:
            continue  # a source that does not serve the task, which is refused elsewhere
        for key in set().union(*readers.values()).difference(readers[value]):
            others = " or ".join(show(other) for other, keys in readers.items() if key in keys)
            unused[key] = f"with {name}={show(value)}, only with {others}"
    for general, template in (("num_layers", "num_{}_layers"), ("residual", "{}_residual")):
        names = [template.format(stack) for stack in ARCHITECTURES[config.model.architecture]]
        if None not in [config.model[name] for name in names]:
            owns = " and ".join(f"model.{name}={config.model[name]!r}" for name in names)
            unused[f"model.{general}"] = f"with {owns}"
    residuals, model = _residuals(config), config.model
    rows, named = [SCHEMES[name] for name in residuals], " and ".join(map(show, residuals))
    if all(row.qkv_norm for row in rows):
        unused["model.qk_norm"] = (
            f"with model.residual={named}, which norms queries and keys itself"
        )
    if all(row.embedding_norm for row in rows):
        unused["model.embedding_norm"] = (
            f"with model.residual={named}, which norms the embedding itself"
        )
    # What reads out an encoder alone, or a set, may end in a norm.
    text = "decoder" in ARCHITECTURES[model.architecture] and model.architecture not in UNORDERED
    if text and not any((model.qk_norm, model.embedding_norm, *(row.norms for row in rows))):
        reason = f"with model.residual={named}, which has no norms"
        unused |= dict.fromkeys(("model.norm", "model.norm_epsilon"), reason)
    if parts := _own_of_parts(config, tasks.choose(config.task.name, config.model.architecture)):
        for key in set.intersection(*map(set, parts)):
            unused.setdefault(key, "with data.parts, each of which sets it")
    return unused


def _residuals(config: Config) -> list[str]:
    """The schemes of the model's stacks, each once."""
    model, stacks = config.model, ARCHITECTURES[config.model.architecture]
    return list({model[f"{stack}_residual"] or model.residual: None for stack in stacks})


def _choices(config: Config) -> dict[str, tuple[Any, Mapping[Any, Collection[str]]]]:
    """Of each setting that chooses what is read its value, and the keys that only some values read.

    A later one's reason counts.
    """
    task = tasks.choose(config.task.name, config.model.architecture)
    flat, start = flatten(config), config.checkpoint.init_from
    # Of two schemes the one that reads more.
    residuals = _residuals(config)
    flat["model.residual"] = max(residuals, key=lambda name: len(SCHEMES[name].reads))
    flat["model.qk_norm"] |= any(SCHEMES[name].qkv_norm for name in residuals)
    decays = [decay for *_, decay in config.optimizer.groups]
    flat["optimizer.weight_decay"] = max([config.optimizer.weight_decay, *decays])
    source, sources = config.data.source, _in("data", _sources(task))
    if source in sources:
        sources[source] = _read_of_data(config, task, sources)
    return {
        **{
            name: (bool(flat[name]) if True in readers else flat[name], readers)
            for name, readers in _readers().items()
        },
        "data.source": (source, sources),
        "task.name": (task.recipe.name, {name: _read_by(row) for name, row in TASKS.items()}),
        "checkpoint.init_from": (start, {start: (), "": _TOKENIZER}),
    }


def _read_of_data(config: Config, task: Task, sources: Mapping[str, Collection[str]]) -> list[str]:
    """What the data reads of the config, whose sets and parts do not read what they set themselves.

    sources: the keys that each source reads.
    """
    general, parts = config.data.source, _own_of_parts(config, task)
    rows: list[tuple[Any, Collection[str]]] = [(general, ())]
    rows += [(source, ("data.dir", "data.name")) for source, *_ in config.data.mixture]
    rows = [(part.get("data.source", general), part) for part in parts] or rows
    return [key for source, keys in rows for key in sources.get(source, ()) if key not in keys]


def _own_of_parts(config: Config, task: Task) -> list[dict[str, object]]:
    """What each of the data's parts sets itself, by key; none where there are no parts."""
    rows = config.data.parts if "data.parts" in task.settings else ()
    parts = [[change.partition("=") for change in row[2:]] for row in rows]
    return [{key: parse(Kind(str, False), value) for key, _, value in part} for part in parts]


def _in(section: str, reads: Mapping[Any, Collection[str]]) -> dict[Any, list[str]]:
    return {name: [f"{section}.{key}" for key in keys] for name, keys in reads.items()}


def _reads(table: Mapping[str, Any]) -> dict[str, Collection[str]]:
    """What the rows of a table say that they read; a row may be None."""
    return {name: row.reads if row else () for name, row in table.items()}


_DEFAULTS = default.get_config()
_DECODE = [f"decode.{key}" for key in _DEFAULTS.decode]
# What the tasks read that read images, and those that read tokens.
_IMAGES = {f"data.{key}" for key in build_data.IMAGES} | {
    f"model.{key}" for key in ("stem", "patch_size", "prefix_tokens", "pixel_mean", "pixel_std")
}
_ROTARY = ("model.rotary_base", "model.rotary_scaling", "model.rotary_fraction")
_TOKENS = {"model.vocab_size", "model.embedding_scale"}
_TOKENIZER = tuple(f"data.tokenizer.{key}" for key in ("kind", "vocab_size", "train_bytes"))


def _readers() -> dict[str, Mapping[Any, Collection[str]]]:
    """The keys that each value of a setting reads and not every other one does.

    True: any value but none, 0 and (). A function, since `config.rows` adds to the tables.
    """
    return {
        "optimizer.schedule": {
            name: ("optimizer.final_learning_rate",) * row.ends
            + tuple(f"optimizer.{key}" for key in row.reads)
            for name, row in SCHEDULES.items()
        },
        "optimizer.name": {
            name: [f"optimizer.{key}" for key in row.reads]
            + ["optimizer.beta2_half_life"] * ("beta2" in row.reads)
            + ["train.ema_decay"] * (row.average is None)
            for name, row in OPTIMIZERS.items()
        },
        "optimizer.beta2_half_life": {True: (), False: ("optimizer.beta2",)},
        "optimizer.weight_decay": {True: ("optimizer.weight_decay_power",), False: ()},
        "model.residual": _in("model", _reads(SCHEMES)),
        "decode.method": _in("decode", METHODS),
        "model.norm": {
            name: ("model.norm_epsilon",) * (not row.scalars) for name, row in NORMS.items()
        },
        "model.qk_norm": {True: ("model.qk_norm_over",), False: ()},
        "model.memory_length": {True: ("evaluate.memory_length",), False: ()},
        "model.positions": {
            name: ("model.max_length",) * row.learned
            + ("model.max_distance",) * row.distances
            + _ROTARY * (row.rotation is not None)
            for name, row in POSITIONS.items()
        },
        "model.stem": _in("model", _reads(STEMS)),
        "model.parameterization": _in("model", _reads(PARAMETERIZATIONS)),
        "model.family": {
            name: [f"model.{key}" for key in row.reads.intersection(_DEFAULTS.model)]
            for name, row in FAMILIES.items()
        },
        # An encoder alone also embeds, whatever it is trained for.
        "model.architecture": {
            name: [
                "model.num_queries"
                if name in UNORDERED
                else "model.pooling"
                if stacks == ("encoder",)
                else "model.logits_bias"
            ]
            + [key for s in stacks for key in (f"model.num_{s}_layers", f"model.{s}_residual")]
            for name, stacks in ARCHITECTURES.items()
        },
        "data.tokenizer.kind": {
            name: _TOKENIZER[1:] * (row.least is not None) for name, row in TOKENIZERS.items()
        },
        "data.mixture": {True: (), False: ("data.train",)},
        "data.packing": {True: ("data.row_source_length", "data.row_target_length"), False: ()},
    }


def _sources(task: Task) -> dict[str, Collection[str]]:
    """What the sources that serve a task read."""
    columns = task.recipe.reads
    return {name: rows[columns].reads for name, rows in SOURCES.items() if columns in rows}


def _read_by(task: Task) -> set[str]:
    """The keys that this task reads and not every other one does."""
    recipe, decodes = task.recipe, task.limit is not None
    lengths = {f"data.{kind}_{side}_length" for kind in ("max", "row") for side in recipe.sides}
    keys = {*lengths, *task.settings, *(_TOKENIZER if recipe.tokenized else ())}
    keys |= _IMAGES if recipe.reads_images else _TOKENS
    keys -= {"data.max_source_length"} if recipe.reads_images else set()
    keys |= {f"data.{key}" for reads in _sources(task).values() for key in reads}
    keys |= set(_DECODE) if decodes else set()
    keys |= {"evaluate.samples"} if task.results else set()
    keys |= {"task.label_smoothing", "task.z_loss"} if task.metrics == METRICS else set()
    of_tokens = {"model.tied_embeddings", "model.logits_softcap"}
    return keys | (of_tokens if recipe.labels is None else set())
