"""What a work directory says of its run: whether it has been trained, scored, by which config."""

import contextlib
from pathlib import Path
from typing import Any

from configs.default import Config
from transformer_jax.config.load import difference, load, refused
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, read_results


def final_status(config: Config, workdir: Path) -> str | None:
    """The status with which exactly this config has been trained and scored here, if it has."""
    results = read_results(workdir)
    done = is_scored(results) and (workdir / CONFIG).exists()
    if not done or changes(config, workdir) or _is_edited(config, workdir):
        return None
    return results["status"]


def _is_edited(config: Config, workdir: Path) -> bool:
    """Whether config.json is not that of the checkpoints; what restores one says how it differs."""
    for path in sorted((workdir / CHECKPOINTS).glob(f"*/{CONFIG}")):
        with contextlib.suppress(ValueError):  # a broken one
            return bool(refused(load(str(path)), config))
    return False


def is_scored(results: dict[str, Any]) -> bool:
    """Whether these are the results of a run that has made all its steps, scores and all."""
    status, whole = results.get("status"), results.get("first_bad_step", 0) is None
    scored = any(name.startswith(("validation/", "test/")) for name in results)
    return scored and (status in ("finished", "plateaued") or (status == "diverged" and whole))


def changes(config: Config, workdir: Path) -> list[str]:
    """How the config differs from the one that the work directory was last trained with."""
    return difference(load(str(workdir / CONFIG)), config)


def check_trained(workdir: Path, checkpoint: str | None) -> None:
    """Raises FileNotFoundError at once where there is nothing to score or translate with."""
    own = checkpoint in (None, "last", "best") or checkpoint.isdecimal()
    if own and not (workdir / CHECKPOINTS).is_dir():
        raise FileNotFoundError(f"there is no checkpoint in {workdir}: train there first")


def named(split: str, scores: dict[str, Any]) -> dict[str, Any]:
    """Scores under flat names, as "test/bleu"."""
    return {f"{split}/{name}": value for name, value in scores.items()}
