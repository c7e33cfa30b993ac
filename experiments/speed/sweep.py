"""The pieces of work, each a run of its own that is measured with all programs that can do it."""

from typing import Any

from experiments.harness.sweep import Run
from experiments.speed.peers import present

JOBS = 1  # at once: nothing else runs while a time is taken

# Rows, and tokens of each side.
_SMALL_BATCH, _BASE_BATCH = (32, 32), (16, 64)
_SIZES = {"d_model": 256, "num_heads": 4, "d_ff": 1024, "num_layers": 3}
_BASE_SIZES = {"d_model": 512, "num_heads": 8, "d_ff": 2048, "num_layers": 6}
# The two rates that are 0 by default; the other two are 0.1 as well.
_DROPOUT = {"attention_dropout_rate": 0.1, "feed_forward_dropout_rate": 0.1}
_SMALL, _BASE = _SIZES | _DROPOUT, _BASE_SIZES | _DROPOUT
_BFLOAT16 = {"dtype": "bfloat16"}
# As nanoGPT and GPT-2 are built, which have no dropout on the hidden layer.
_DECODER = _SIZES | {
    "num_layers": 6,
    "architecture": "decoder_only",
    "residual": "pre_ln",
    "activation": "gelu",
    "positions": "learned",
    "attention_dropout_rate": 0.1,
}
_ADAMW = {
    "task.label_smoothing": 0.0,
    "optimizer.name": "adamw",
    "optimizer.weight_decay": 0.1,
    "optimizer.clip_norm": 1.0,
}
# The lab's: layers and d_model; 4 heads, 16 rows of 64 characters, no dropout, one core.
_LAB_SIZES = {"xs": (2, 64), "s": (3, 64), "m": (4, 128)}
_LAB_BATCH = (16, 64)
_TOKENS = {"tokens": 64}  # that each prompt gets

# The products alone take part everywhere: their rate is that of the machine in the same minutes.
_STEP = ["products", "ours", "flax", "torch", "torch_compiled"]
_LOW = ["products", "torch_products", "ours", "ours_float32", "torch_autocast"]
_START = ["ours", "flax", "torch"]
_GPT = ["products", "ours", "nanogpt", "nanogpt_compiled"]
_LAB = ["products", "ours", "nanogpt", "nanogpt_fused", "nanogpt_compiled"]
_KERNELS = ["ours", "ours_cudnn"]
_GENERATE = ["products", "ours", "hugging_face"]


def _run(
    work: str,
    model: dict[str, Any],
    batch: tuple[int, int],
    measure: dict[str, Any],
    other: dict[str, Any] | None = None,
) -> Run:
    """A run that is measured; other: changes of the config that are not the model's."""
    rows, length = batch
    sides = ["target"] if model.get("architecture") == "decoder_only" else ["source", "target"]
    lengths = {f"data.{kind}_{side}_length": length for kind in ("max", "row") for side in sides}
    sizes = {f"model.{name}": value for name, value in model.items()}
    return Run(
        config="configs/default.py",
        overrides={"model.vocab_size": 8192, "data.batch_size": rows}
        | lengths
        | sizes
        | (other or {}),
        labels={"work": work},
        train=False,
        measure={"changes": {}, **measure},
    )


def _turns(
    work: str, programs: list[str], rounds: int, calls: int = 1, **arguments: Any
) -> dict[str, Any]:
    """What `measure.turns` gets."""
    return {
        "what": "turns",
        "work": work,
        "programs": present(programs),
        "rounds": rounds,
        "calls": calls,
        "arguments": arguments,
    }


def cpu(quick: bool) -> list[Run]:
    """Training steps, decoding, starts and compilation, with every peer that is here."""
    rounds, few = (3, 1) if quick else (5, 2)
    greedy, sample = ({"changes": {"decode.method": name}} for name in ("greedy", "sample"))
    steps = _turns("step", _STEP, rounds)
    low = _turns("step", _LOW, rounds)
    decode = _turns("decode", ["products", "ours", "flax", "hugging_face"], rounds, **_TOKENS)
    generate = _turns("decode", _GENERATE, rounds, **_TOKENS)
    compiled = _turns("compile", ["ours", "ours_60_layers"], few)
    started = {"what": "starts", "programs": present(_START), "rounds": few}
    prompts = (32, 16)
    return [
        _run("step_small", _SMALL, _SMALL_BATCH, steps | {"calls": 3}),
        _run("step_base", _BASE, _BASE_BATCH, _turns("step", [*_STEP, "torch_products"], rounds)),
        _run("step_base_bfloat16", _BASE | _BFLOAT16, _BASE_BATCH, low),
        _run("step_decoder", _DECODER, _BASE_BATCH, _turns("step", _GPT, rounds, 3), _ADAMW),
        *(_lab(name, _turns("step", _LAB, rounds, 20) | {"cores": 1}) for name in _LAB_SIZES),
        _run("beam", _SMALL, _SMALL_BATCH, decode),
        _run("greedy", _SMALL, _SMALL_BATCH, generate | greedy),
        _run("greedy_decoder", _DECODER, prompts, generate | greedy),
        _run("sample_decoder", _DECODER, prompts, generate | sample),
        _run("compile", _SIZES | {"num_layers": 6}, _SMALL_BATCH, compiled),
        _run("start", _SMALL, _SMALL_BATCH, started),
        _generate(rounds),
        _trainings("sweep", steps=60, log_every=10, measure={"rounds": 1 if quick else 3}),
        _trainings("training", steps=600 if quick else 5000, log_every=100, measure={}),
    ]


def _lab(name: str, measure: dict[str, Any]) -> Run:
    """A step of one of the lab's sizes, as nanoGPT builds it: learned positions."""
    layers, width = _LAB_SIZES[name]
    sizes = {"num_layers": layers, "d_model": width, "d_ff": 4 * width, "vocab_size": 256}
    rates = dict.fromkeys(("dropout_rate", "embedding_dropout_rate", "attention_dropout_rate"), 0.0)
    return _run(f"step_{name}", _DECODER | sizes | rates, _LAB_BATCH, measure, _ADAMW)


def _generate(rounds: int) -> Run:
    """The command that continues one line, of a model of one step and the size of `small`."""
    return Run(
        config="configs/quickstart.py",
        overrides={f"model.{name}": value for name, value in _SIZES.items()} | {"train.steps": 1},
        labels={"work": "generate"},
        train=False,
        measure={"what": "generate", "changes": {}, "rounds": rounds},
    )


def _trainings(what: str, steps: int, log_every: int, measure: dict[str, Any]) -> Run:
    """Training through the command line, of a model whose steps take little."""
    return Run(
        config="configs/bigram_copy.py",
        overrides={
            "model.num_layers": 1,
            "model.d_model": 32,
            "model.num_heads": 1,
            "model.d_ff": 64,
            "data.batch_size": 8,
            "train.steps": steps,
            "train.log_every": log_every,
        },
        labels={"work": what},
        train=False,
        measure={"what": what, "changes": {}, **measure},
    )


def multi30k(quick: bool) -> list[Run]:
    """Real tokens a second, and what the input pipeline alone delivers."""
    rounds = 3 if quick else 15  # by 10 steps: about an epoch
    works = {
        "epoch": _turns("epoch", ["ours", "flax"], rounds, calls=10),
        "pipeline": _turns("pipeline", ["ours"], rounds, calls=100),
    }
    return [
        Run(
            config="configs/multi30k.py",
            overrides={},
            labels={"work": work},
            train=False,
            measure={"changes": {}, **measure},
        )
        for work, measure in works.items()
    ]


def gpu(quick: bool) -> list[Run]:
    """Training steps and decoding in bfloat16, of batches that fill a GPU. `gpu.py` runs them.

    Attention has no dropout, which cuDNN's kernel does not have here.
    """
    rounds = 2 if quick else 5
    low = _BFLOAT16 | {"attention_dropout_rate": 0.0}
    gpt2 = _DECODER | {"d_model": 768, "num_heads": 12, "d_ff": 3072, "num_layers": 12}
    both = {"spare": True, **_turns("step", [*_KERNELS, "torch_compiled_autocast"], rounds, 5)}
    gpts = {"spare": True, **_turns("step", [*_KERNELS, "nanogpt_compiled_autocast"], rounds, 5)}
    generate = {"spare": True, **_turns("decode", ["ours", "hugging_face"], rounds, **_TOKENS)}
    greedy, sample = ({"changes": {"decode.method": name}} for name in ("greedy", "sample"))

    def batch(rows: int, length: int) -> tuple[int, int]:
        return (8, 8) if quick else (rows, length)

    vocabulary = {"model.vocab_size": 50_257}
    prompts = batch(256, 32)
    return [
        _run("step_base", _BASE | low, batch(128, 256), both),
        _run("step_gpt2", gpt2 | low, batch(16, 1024), gpts, _ADAMW | vocabulary),
        _run("greedy", _BASE | low, prompts, generate | greedy),
        _run("greedy_gpt2", gpt2 | low, prompts, generate | greedy, vocabulary),
        _run("sample_gpt2", gpt2 | low, prompts, generate | sample, vocabulary),
        _run("step_decoder", _DECODER | low, batch(64, 512), gpts, _ADAMW),
        _run("step_small", _SMALL | low, batch(512, 128), both),
    ]


SWEEPS = {"cpu": cpu, "multi30k": multi30k}
