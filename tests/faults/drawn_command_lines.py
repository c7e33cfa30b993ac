"""Command lines as they are drawn: modes and flags with right, wrong, odd and missing values.

"@" stands for a folder, whose `run` is a trained work directory.
"""

from typing import NamedTuple

from hypothesis import strategies as st

from tests.faults.endings import MAIN
from transformer_jax.commands import COMMANDS

_PATHS = "|-|@|@/t|@/none|@/none/x|@/t/x|/dev/null|é\u2028|~nobody_here/y|" + "w" * 300
_VALUES = {
    "config": f"@/run.json|@/broken.py|nowhere.py|@/t.json:x|{_PATHS}",
    "workdir": f"@/run|@/run|@/run|@/new|{_PATHS}",
    "checkpoint": f"last|best|2|7|-1|٣|last |@/run/checkpoints/2|{_PATHS}",
    "split": "test|validation|train||Test",
    "input": f"@/t|@/t|@/latin|@/t.gz|{_PATHS}",
    "output": f"@/out|/dev/full|{_PATHS}",
    "step": "1|2|7|0|-1|x||1.5|" + "9" * 30,
    **{name: "True|false|x|" for name in ("search", "explain", "check")},
    "verbosity": "0|x",
    "inptu": "x",
    "config.seed": "3|4|x|",
    "config.decode.beam_size": "1|0",
    "config.model.pooling": "mean|x",
    "config.nothing": "1",
    "config.": "1",
}
_WORDS = "train|é|--|---|-|--=|--config.seed|--step|--nosearch|--check".split("|")
_MODES = [*COMMANDS, "", "Train", "trian", "generate ", "none"]
# Commands with a command line of their own: with what they do no harm, and other arguments.
_TOOLS = {
    "transformer_jax.tools.reports.compare": (
        "--output=@/compared",
        "@/run|@/run|@/none|@|@/t|--output=@/none/c|--output|--otuput=x|é",
    ),
    "transformer_jax.tools.reports.report": (
        "--output=@/report.html",
        "@/run|@/run|@/none|@|--output=@|--output=@/none/x|--experiment=x||--runs_dir=@/t|--runs_dir=~nobody_here|--runs_dir",
    ),
    "transformer_jax.tools.cloud.launcher": (
        "--dry_run|--project=p",
        "--accelerator=v5e-16|--accelerator=v5e-8|--accelerator=x|--zone=us-west4-a|--zone=a|--spot|"
        "--reserved|--flex_start=12h|--now|--create='|--keep|--max_hours=x|--max_failures=1|--zone|"
        "train|train|--workdir=gs://b/f|experiment|--workdir=x|--config=none.py|--config|é",
    ),
    "experiments.run": (
        "--dry_run|--runs_dir=@/runs",
        "warm_up|positions|nothing|@/none|@|../x|é||--quick|--sweep=x|--run=x|--jobs=0|--jobs=x|"
        "--executor=slurm|--executor=x|--executor=tpu|--options='|--data_dir=@|--data_dir=@/none|"
        "--data_dir=~nobody_here/x|--bucket=x|--new|--sweep",
    ),
}


class CommandLine(NamedTuple):
    """What is called, and its arguments."""

    module: str
    arguments: list[str]


def command_lines(number: int, *, small: bool) -> st.SearchStrategy[CommandLine]:
    """A mode with flags, or a tool with arguments. small: none that takes long."""
    return st.one_of(*4 * [_of_main(small)], st.sampled_from(sorted(_TOOLS)).flatmap(_of_tool))


def _of_tool(module: str) -> st.SearchStrategy[CommandLine]:
    harmless, others = (texts.split("|") for texts in _TOOLS[module])
    strategy = st.lists(st.sampled_from(others), max_size=6)
    return strategy.map(lambda arguments: CommandLine(module, harmless + arguments))


@st.composite
def _of_main(draw: st.DrawFn, small: bool) -> CommandLine:
    modes = [mode for mode in _MODES if not (small and mode == "check_parameterization")]
    mode = draw(st.sampled_from([None, *modes]))
    command = COMMANDS.get(mode or "train")
    names = ["config", "workdir", *(command.flags if command else ())]
    arguments = [] if mode is None else [f"--mode={mode}"]
    for name in draw(st.lists(st.sampled_from(names * 4 + sorted(_VALUES)), max_size=5)):
        form = draw(st.sampled_from(["--{}={}"] * 4 + ["-{}={}", "--{}|{}", "--{}"]))
        arguments += form.format(name, draw(st.sampled_from(_VALUES[name].split("|")))).split("|")
    words = draw(st.lists(st.sampled_from(_WORDS), max_size=1))
    return CommandLine(MAIN, draw(st.permutations(arguments)) + words)
