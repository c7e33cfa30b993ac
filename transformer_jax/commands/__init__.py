"""What each mode of the command line does, from a checked config to an exit status.

A row names its function as text, and imports it when it is called: so a mode loads what it needs,
and those of tools stand here though the core knows no tool.
"""

import importlib
from collections.abc import Callable
from typing import NamedTuple


class Command(NamedTuple):
    """One mode.

    function: "MODULE:NAME" in this package, (config, workdir, *flags) -> exit status. flags: the
    names of those that it reads besides config and workdir. needs_workdir: otherwise it works
    without one, and with any. joins_hosts: whether all hosts of a job run it together. words:
    whether it takes words of the command line in place of all that. makes_config: the changes that
    it takes in place of a config, since it writes one.
    """

    function: str
    flags: tuple[str, ...] = ()
    needs_workdir: bool = True
    joins_hosts: bool = True
    words: bool = False
    makes_config: tuple[str, ...] = ()

    def load(self) -> Callable[..., int]:
        """Imports the function."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"transformer_jax.{module}"), name)


# What is scored, of which no checkpoint of others says anything.
_DATA = tuple(
    f"data.{name}"
    for name in """source dir name cache_dir train validation test source_language target_language
        text_feature label_feature prefix document_separator max_source_length max_target_length
        row_source_length row_target_length""".split()
)

COMMANDS = {
    "train": Command("commands.train:train"),
    # One host prepares for all that share data.cache_dir, and needs no devices.
    "prepare": Command(
        "commands.prepare:prepare", ("check",), needs_workdir=False, joins_hosts=False
    ),
    "evaluate": Command("commands.evaluate:evaluate", ("checkpoint", "split")),
    "generate": Command("commands.generate:generate", ("checkpoint", "input", "output")),
    "embed": Command("commands.embed:embed", ("checkpoint", "input", "output")),
    "look": Command("tools.pages.command:look", ("checkpoint", "input", "output")),
    "inspect": Command("tools.show.inspect:inspect", needs_workdir=False),
    "check_parameterization": Command(
        "tools.coordinate_check:check_parameterization",
        needs_workdir=False,
        joins_hosts=False,
    ),
    "replay": Command("tools.replay:replay", ("step",)),
    "import": Command(
        "tools.convert.commands:import_",
        (
            *("checkpoint", "source_language", "target_language"),
            *("verify", "revision_folders", "pickled"),
        ),
        makes_config=("model.pooling", *_DATA),
    ),
    "export": Command("tools.convert.commands:export", ("checkpoint", "output")),
    # It needs no devices, and so nobody else.
    "preflight": Command(
        "tools.preflight.report:preflight",
        ("search", "explain"),
        needs_workdir=False,
        joins_hosts=False,
    ),
    "configs": Command("tools.show.lists:configs", joins_hosts=False, words=True),
    "keys": Command("tools.show.lists:keys", joins_hosts=False, words=True),
}
