"""What each mode of the command line does, from a checked config to an exit status."""

from collections.abc import Callable
from typing import NamedTuple

from transformer_jax.commands.check_parameterization import check_parameterization
from transformer_jax.commands.configs import configs
from transformer_jax.commands.embed import embed
from transformer_jax.commands.evaluate import evaluate
from transformer_jax.commands.generate import generate
from transformer_jax.commands.inspect import inspect
from transformer_jax.commands.keys import keys
from transformer_jax.commands.prepare import prepare
from transformer_jax.commands.replay import replay
from transformer_jax.commands.train import train
from transformer_jax.tools.convert.commands import export, import_
from transformer_jax.tools.pages.command import look
from transformer_jax.tools.preflight.command import preflight


class Command(NamedTuple):
    """One mode.

    run: (config, workdir, *flags) -> exit status. flags: the names of those that it reads besides
    config and workdir. needs_workdir: otherwise it works without one, and with any. joins_hosts:
    whether all hosts of a job run it together. words: whether it takes words of the command line in
    place of all that. makes_config: whether it takes no config, since it writes one.
    """

    run: Callable[..., int]
    flags: tuple[str, ...] = ()
    needs_workdir: bool = True
    joins_hosts: bool = True
    words: bool = False
    makes_config: bool = False


COMMANDS = {
    "train": Command(train),
    # One host prepares for all that share data.cache_dir, and needs no devices.
    "prepare": Command(prepare, ("check",), needs_workdir=False, joins_hosts=False),
    "evaluate": Command(evaluate, ("checkpoint", "split")),
    "generate": Command(generate, ("checkpoint", "input", "output")),
    "embed": Command(embed, ("checkpoint", "input", "output")),
    "look": Command(look, ("checkpoint", "input", "output")),
    "inspect": Command(inspect, needs_workdir=False),
    "check_parameterization": Command(
        check_parameterization, needs_workdir=False, joins_hosts=False
    ),
    "replay": Command(replay, ("step",)),
    "import": Command(import_, ("checkpoint",), makes_config=True),
    "export": Command(export, ("checkpoint", "output")),
    # It needs no devices, and so nobody else.
    "preflight": Command(preflight, ("search", "explain"), needs_workdir=False, joins_hosts=False),
    "configs": Command(configs, joins_hosts=False, words=True),
    "keys": Command(keys, joins_hosts=False, words=True),
}
