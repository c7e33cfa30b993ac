"""The commands that are killed: on what they work, and the modes that each goes through."""

import json
import shutil
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
from pyarrow import parquet

from tests.experiments.conftest import MEASURE, REPORT, SWEEP
from tests.tools.convert import llama
from tests.whole import older_workdirs_test
from tests.whole.command_line import BYTES
from transformer_jax.config.load import load, to_json
from transformer_jax.configs import default

MAIN = "transformer_jax.main"
TINY = BYTES | {
    "data.dir": "CORPUS",
    "data.cache_dir": "cache",
    "data.max_target_length": 16,
    "data.row_target_length": 24,
    "model.num_layers": 2,
    "optimizer.schedule": "cosine",
    "optimizer.warmup_steps": 5,
    "train.accumulation_steps": 2,
    "train.steps": 18,
    # Windows that neither begin nor end where checkpoints are.
    "train.log_every": 4,
    "train.evaluate_every": 9,
    "checkpoint.every": 3,
    "checkpoint.average_last": 2,
    "decode.extra_length": 2,
    "decode.beam_size": 2,
}
# Documents of several pieces, and shorter ones that share a row.
TEXT = {"data.train": ("text",), "data.test": (), "data.validation_size": 200}
# Readers and what they remember, across documents and kills.
READERS = TEXT | {
    "model.architecture": "decoder_only",
    "data.row_target_length": 16,
    "decode.method": "greedy",
}
# Three formats: the source, the folder and the files of each, and its weight.
MIXTURE = (
    ("text", "CORPUS", "text", 1.0),
    ("json", "CORPUS", "upper.jsonl.zst", 2.0),
    ("parquet", "CORPUS", "parts-*.parquet", 1.5),
)
SHAPES = {
    "encoder_decoder": {
        "data.validation_size": 9,
        "data.tokenizer.kind": "unigram",  # which takes a while to train
        "data.tokenizer.vocab_size": 60,
        "model.residual": "admin",
    },
    "decoder_only": {
        "model.architecture": "decoder_only",
        "data.mixture": MIXTURE,
        "data.text_feature": "text",
        "data.validation": ("text",),
        "data.test": (),
        "model.positions": "rotary",
        "model.residual": "pre_ln",
        "optimizer.name": "muon",
        "train.ema_decay": 0.9,
        "decode.method": "sample",
    },
    "encoder_only": TEXT
    | {
        "model.architecture": "encoder_only",
        "model.tied_embeddings": "none",
        "optimizer.name": "adafactor",
    },
    "memory": READERS | {"model.positions": "distance", "model.memory_length": 10},
    "states": READERS
    | {"model.family": "recurrent", "model.recurrence": "lstm", "model.stateful": True},
    # Many files, which several processes tokenise.
    "prepare": TEXT
    | {"model.architecture": "decoder_only", "data.train": ("many-*",)}
    | {"data.tokenizer.kind": "unigram", "data.tokenizer.vocab_size": 300},
    "two hosts": TEXT
    | {
        "model.architecture": "encoder_only",
        "data.row_source_length": 16,
        "evaluate.batch_size": 8,
        "mesh.data": 1,
        "mesh.fsdp": -1,  # every host holds a part of each parameter
    },
}


class Command(NamedTuple):
    """A command of the project, called in a folder.

    Attributes:
      program: the module, and its flags; "CORPUS" stands for the folder of the corpus.
      modes: what is noted in `noted/sitecustomize.py`, or its beginning, and the mode that it is.
      after: the command in whose finished folder this one begins; "": in one with its config.
      hosts: how many processes share the work.
    """

    program: str
    modes: dict[str, str]
    after: str = ""
    hosts: int = 1


def _main(flags: str, mode: str, after: str = "", hosts: int = 1) -> Command:
    return Command(f"{MAIN} {flags}", {MAIN: "loading", "work": mode}, after, hosts)


BEGIN = {MAIN: "loading", "work": "begin"}
TOKENIZER = {"Reading the train split": "tokenizer", "Training the tokenizer": "tokenizer"}
PREPARING = BEGIN | {"Tokenising": "prepare"}
TRAINING = PREPARING | {
    "Compiling the training step": "compile",
    "Training": "step",
    "Scoring": "score",
    "save": "save",
    "prune": "prune",
}
TRAIN = f"{MAIN} --config=config.json --workdir=run"
LINES = "--workdir=run --input=CORPUS/lines"
IMPORT = "--mode=import --checkpoint=CORPUS/theirs --workdir=ours"
EXPORT = "--mode=export --workdir=ours --output=back"
SHARED = " --config.mesh.data=1 --config.mesh.fsdp=-1"  # each host holds a part of the parameters
COMMANDS = {
    "encoder_decoder": Command(TRAIN, BEGIN | TOKENIZER | TRAINING),
    "decoder_only": Command(TRAIN, TRAINING),
    "encoder_only": Command(TRAIN, TRAINING),
    "memory": Command(TRAIN, TRAINING),
    "states": Command(TRAIN, TRAINING),
    "two hosts": Command(TRAIN, TRAINING, hosts=2),
    "fork": Command(
        f"{MAIN} --config=config.json --workdir=branch "
        "--config.checkpoint.fork_from=run/checkpoints/15 --config.train.steps=24",
        TRAINING,
        after="memory",
    ),
    "prepare": Command(
        f"{MAIN} --mode=prepare --config=config.json", BEGIN | TOKENIZER | PREPARING
    ),
    "evaluate": _main("--mode=evaluate --workdir=run", "evaluate", "encoder_decoder"),
    "generate": _main(f"--mode=generate {LINES} --output=written", "generate", "encoder_decoder"),
    "look": _main(f"--mode=look {LINES} --output=page.html", "look", "decoder_only"),
    "report": Command(
        "transformer_jax.tools.reports.report CORPUS/runs/translation CORPUS/runs/language_model "
        "--output=page.html",
        {"transformer_jax.tools.reports.report": "report"},
    ),
    "import": _main(IMPORT, "import"),
    "export": _main(EXPORT, "export", "import"),
    "import on two hosts": _main(IMPORT, "import", hosts=2),
    "export on two hosts": _main(EXPORT + SHARED, "export", "import on two hosts", hosts=2),
    "sweep": Command(
        "experiments.run question --sweep=trained --runs_dir=runs",
        {"experiments.run": "loading", "work": "sweep", "experiments.harness.measure": "measure"},
    ),
}


def make_corpus(folder: Path) -> None:
    """Makes texts, lines to generate from, a checkpoint of others, and runs to report on."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 3)) for _ in range(80)]
    for split in ("train", "test"):
        for language, text in (("en", str), ("de", str.upper)):
            lines = [text(f"{a} {b}\n") for a, b in zip(words, reversed(words), strict=True)]
            (folder / f"{split}.{language}").write_text("".join(lines))
    documents = [" ".join(words[n : n + 1 + n % 8]) for n in range(len(words))]
    (folder / "text").write_text("".join(f"{document}\n" for document in documents))
    (folder / "lines").write_text("".join(f"{document}\n" for document in documents[:3]))
    for part in range(12):
        tokens = ["".join(rng.choice(list("abcdefgh"), 1 + n % 7)) for n in range(500)]
        (folder / f"many-{part:02}").write_text("\n".join(tokens))
    upper = "".join(json.dumps({"text": document.upper()}) + "\n" for document in documents)
    with pyarrow.output_stream(str(folder / "upper.jsonl.zst"), compression="zstd") as file:
        file.write(upper.encode())
    for part, texts in enumerate((documents[:50], documents[50:])):
        table = pyarrow.table({"text": [document.title() for document in texts]})
        parquet.write_table(table, folder / f"parts-{part}.parquet")
    llama.checkpoint(folder / "theirs")
    shutil.copytree(older_workdirs_test.FOLDER, folder / "runs")


def make_folder(name: str, home: Path, corpus: Path) -> None:
    """Makes the folder in which a command begins that continues no other."""
    (home / "tmp").mkdir(parents=True)
    if name == "sweep":
        (home / "question").mkdir()
        for part, text in (("sweep", SWEEP), ("measure", MEASURE), ("report", REPORT)):
            program = f"CACHE = {str(home / 'cache')!r}\n{textwrap.dedent(text)}"
            (home / "question" / f"{part}.py").write_text(program)
    if name in SHAPES:
        config = to_json(load(default.__file__, TINY | SHAPES[name]))
        (home / "config.json").write_text(config.replace("CORPUS", str(corpus)))
