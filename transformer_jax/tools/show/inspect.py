"""Shows what a config means, and trains nothing."""

import math
from pathlib import Path

from transformer_jax.config import effects
from transformer_jax.config.build import built
from transformer_jax.config.load import difference, to_json
from transformer_jax.configs import default
from transformer_jax.configs.default import Config
from transformer_jax.data.prepare.summary import report
from transformer_jax.devices import mesh
from transformer_jax.inspection import memory
from transformer_jax.inspection.flops import product_flops
from transformer_jax.models.family import Role
from transformer_jax.models.layers.parameter import Share
from transformer_jax.models.transformer.config import scheme, stacks
from transformer_jax.run import Run
from transformer_jax.training.update_rules import OPTIMIZERS

_ROWS = 2000  # of training data that are packed to see how full they are


def inspect(config: Config, workdir: Path | None) -> int:
    """Prints the config and its changes, the parameters, a step's cost, the memory and the data."""
    changes, notes = difference(default.get_config(), config), effects.notes(config)
    with built(config, workdir) as run:
        if run.data.has_tokenizer:
            _ = run.data.vocab_size  # refused, as in training, where the model has less
        print(to_json(config))
        print("Changes from the default:", *(changes or ["none"]), sep="\n  ")
        if notes:
            print("To note:", *notes, sep="\n  ")

        if run.family.inspected:
            print("\nThe output of a residual sublayer:")
            for stack in stacks(run.model.config):
                print(f"  {stack}: {scheme(run.model.config, stack).equation}")

        width = max(map(len, run.roles))
        print("\nParameters:")
        for path, role in run.roles.items():
            text = _dimensions(run, role) + _share(role, run.optimizer.name)
            print(f"  {path:{width}}  {math.prod(role.shape):>13,}  {text}")
        total = sum(math.prod(role.shape) for role in run.roles.values())
        print(f"  {'total':{width}}  {total:>13,}")

        flops = product_flops(run.train_step().trace(run.abstract_state, run.abstract_batch()))
        print(f"\nMatrix products of one training step: {flops:.3e} FLOPs")
        print(
            "\nMemory at least, by shapes (`preflight` compiles the steps):",
            *memory.table(run),
            sep="\n  ",
        )
        print(f"\n{_data(run)}")
        return 0


def _data(run: Run) -> str:
    """What is in the data, where it is at hand."""
    if run.data.settings.model_vocab_size is not None:
        return "Data: not read, as model.vocab_size is set; training shows it"
    try:
        run.data.settings.find_files()
    except (OSError, ValueError) as error:
        return f"Data: not at hand ({error})"
    lines = [report(run.data.summaries())]
    if run.data.settings.packing:
        share = run.data.share_of_tokens(_ROWS)
        lines.append(f"Places of training rows that hold a token: {share:.1%}")
    for split in ("validation", "test"):
        if run.data.has(split) and (shared := run.data.in_train(split).sum()):
            lines.append(f"{split}: {shared:,} examples are in train too, word for word")
    if run.data.settings.images:
        sheet = run.data.settings.cache / "contact_sheet.png"
        sheet.write_bytes(run.data.contact_sheet())
        lines.append(f"Images as they are trained on: {sheet}")
    return "\n".join(lines)


def _share(role: Role, optimizer: str) -> str:
    """What the model's parameterisation makes of a parameter's draw and steps, if anything."""
    share, rate = role.share, OPTIMIZERS[optimizer].rate(role)
    if share == Share():
        return ""
    factors = {
        "draw": share.draw,
        "multiplier": share.multiplier,
        "learning rate": rate,
        "epsilon": share.epsilon,
    }
    return "; " + ", ".join(f"{name} * {factor:.4g}" for name, factor in factors.items())


def _dimensions(run: Run, role: Role) -> str:
    """The axes and sizes of a parameter, how each is sharded, and what should be and cannot."""
    dimensions = []
    cuts = mesh.spec(run.mesh, role.axes, role.shape)
    for axis, size, cut in zip(role.axes, role.shape, cuts, strict=True):
        names = (cut,) if isinstance(cut, str) else cut or ()  # one alone stands without a tuple
        over = "".join(f" / {name} {run.mesh.shape[name]}" for name in names)
        dimensions.append(f"{axis} {size}{over}")
    text = ", ".join(dimensions)
    whole = mesh.undivided(run.mesh, role.axes, role.shape)
    return f"{text} (whole: {', '.join(whole)})" if whole else text
