"""What each mode of the command line does, from a checked config to an exit status.

WORKDIR/config.json      the config that the directory belongs to
WORKDIR/tokenizer.json   the tokenizer, so that predicting needs no training data
WORKDIR/labels.json      the classes or tags, where the model predicts such
WORKDIR/init_from.json   what was taken from another run, where checkpoint.init_from names one
WORKDIR/profile.json     variances and omega of each sublayer, where the scheme measures them
WORKDIR/metrics.jsonl    the numbers of training, a step a line; the same in tensorboard/
WORKDIR/spikes/STEP.npz  the batches whose losses spiked, the first of them
WORKDIR/results.json     final scores, status, spikes and the first bad step
WORKDIR/samples.txt      a few results on the test split
WORKDIR/checkpoints/     one folder a step
"""

from collections.abc import Callable
from typing import NamedTuple

from transformer_jax.commands.embed import embed
from transformer_jax.commands.evaluate import evaluate
from transformer_jax.commands.generate import generate
from transformer_jax.commands.inspect import inspect
from transformer_jax.commands.preflight import preflight
from transformer_jax.commands.replay import replay
from transformer_jax.commands.train import train


class Command(NamedTuple):
    """One mode.

    run: (config, workdir, *flags) -> exit status. flags: the names of those that it reads besides
    config and workdir. needs_workdir: otherwise it works without one, and with any. joins_hosts:
    whether all hosts of a job run it together.
    """

    run: Callable[..., int]
    flags: tuple[str, ...] = ()
    needs_workdir: bool = True
    joins_hosts: bool = True


COMMANDS = {
    "train": Command(train),
    "evaluate": Command(evaluate, ("checkpoint", "split")),
    "generate": Command(generate, ("checkpoint", "input", "output")),
    "embed": Command(embed, ("checkpoint", "input", "output")),
    "inspect": Command(inspect, needs_workdir=False),
    "replay": Command(replay, ("step",)),
    # It needs no devices, and so nobody else.
    "preflight": Command(preflight, ("search",), needs_workdir=False, joins_hosts=False),
}
