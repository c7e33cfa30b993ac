"""Small untrained models of every task, and what is asked of them."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from tests.defaults import SMALL
from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.configs import default
from transformer_jax.models.family import with_memory


def reads(source, train, test):
    """Settings of data: the source, and a file to train on and one to score."""
    splits = {"data.train": (train,), "data.validation": (test,), "data.test": (test,)}
    return {"data.source": source} | splits


TINY = SMALL | reads("text", "train", "test")
TINY |= {
    "data.row_source_length": 16,
    "data.row_target_length": 16,
    "data.batch_size": 8,
    "evaluate.batch_size": 3,
    "decode.method": "sample",
    "decode.extra_length": 6,
}
LANGUAGE_MODEL = {
    "model.architecture": "decoder_only",
    "data.document_separator": "\n\n",
    "data.tokenizer.kind": "bytes",
    # Exactly what training needs.
    "model.positions": "learned",
    "model.max_length": 16,
}
ENCODER = {"model.architecture": "encoder_only"}
CHANGES = {
    "translation": {},
    "text_to_text": {"task.name": "text_to_text"},
    "span_corruption": {"task.name": "span_corruption"},
    "causal_lm": LANGUAGE_MODEL,
    "masked_lm": ENCODER,
    "classification": ENCODER
    | {"task.name": "classification"}
    | reads("labelled", "train.en", "test.en"),
    "tagging": ENCODER | {"task.name": "tagging"} | reads("conll", "words", "words"),
}
# A model of images, and a training that takes no time.
IMAGES: dict[str, Any] = {
    "data.channels": 1,
    "data.packing": False,
    "data.workers": 1,
    "model.residual": "pre_ln",
    "model.num_layers": 1,
    "model.d_model": 16,
    "model.num_heads": 2,
    "model.d_ff": 32,
    "model.patch_size": 4,
    "optimizer.schedule": "constant",
    "optimizer.warmup_steps": 1,
    "train.steps": 40,
    "train.log_every": 10,
    "train.evaluate_every": 20,
    "checkpoint.every": 10,
}
LINES = ["a b c", "", "h d d", "c d e f g a", "b b b", "f a e", "d"]
ALONE = (0, 2, 5)  # as long as each other


def make_models(folder):
    """Writes data into the folder; returns task -> (run, parameters) of an untrained model."""
    rng = np.random.default_rng(0)
    for split, size in (("train", 40), ("test", 7)):
        lines = [" ".join(rng.choice(list("abcdefgh"), 1 + n % 5)) + " ." for n in range(size)]
        (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{split}.de").write_text("".join(f"{line.upper()}\n" for line in lines))
        # Documents of one line, two, three ...
        ends = ["\n" * (1 + (n % 3 == 2)) for n in range(size)]
        text = "".join(line + end for line, end in zip(lines, ends, strict=True))
        (folder / split).write_text(text)
    sentences = [zip(line.split(), "XYZ" * 3, strict=False) for line in LINES if line]
    tagged = ["".join(f"{word} {tag}\n" for word, tag in sentence) for sentence in sentences]
    (folder / "words").write_text("\n".join(tagged))
    folders = {"data.dir": str(folder), "data.cache_dir": str(folder / "cache")}

    @functools.cache
    def make(task):
        config = load(default.__file__, TINY | CHANGES[task] | folders)
        run = build(config)
        return run, initial(run)

    return make


def configs(folder, settings):
    """A function to a config of files in a folder from changes, "__" in whose names is a dot."""
    settings = settings | {"data.dir": str(folder), "data.cache_dir": str(folder / "cache")}
    return lambda **more: load(
        default.__file__, settings | {key.replace("__", "."): more[key] for key in more}
    )


def beside(run, changes):
    """A run of other settings on the files of this one."""
    source = run.data.settings.source
    places = {"data.dir": source.dir, "data.cache_dir": source.cache_dir}
    return build(load(default.__file__, TINY | places | changes))


def initial(run):
    """The parameters that a run starts from."""
    batch = next(run.data.train_streams())
    return nn.meta.unbox(jax.jit(run.init)(jax.random.key(1), batch))


def decoding(run, **changes):
    """The run with other settings of decoding."""
    return dataclasses.replace(run, decode=dataclasses.replace(run.decode, **changes))


_outputs = jax.jit(with_memory, static_argnums=0)


def log_probabilities(run, params, batch):
    """What the model says of every token or label, (B, T, _)."""
    outputs, _ = _outputs(run.model, params, batch, None, ())
    logits = np.asarray(outputs.arrays(), np.float64)
    return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


def score(run, params, split):
    return run.task.score(run.trained(params), split)


def results(run, params, lines):
    return run.task.results(run.trained(params), lines)
