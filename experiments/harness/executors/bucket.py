"""The bucket in which executors on machines elsewhere keep the work directories."""

import re
import shutil
import subprocess
from pathlib import Path


def fetch(bucket: str | None, home: Path) -> None:
    """Copies BUCKET/FOLDER to `home`, the local folder of that name, all but the checkpoints.

    Raises:
      ValueError: there is no such bucket, or no gcloud.
    """
    if not re.fullmatch("gs://[^/]+/.*[^/]", bucket or ""):
        raise ValueError(
            f"--bucket={bucket}: expected gs://BUCKET/FOLDER, where work directories outlive the "
            "machines of this executor"
        )
    if shutil.which("gcloud") is None:
        raise ValueError("found no gcloud on PATH: https://cloud.google.com/sdk/docs/install")
    source = f"{bucket}/{home.name}"
    if subprocess.run(["gcloud", "storage", "ls", source], capture_output=True).returncode:
        return  # nothing has run yet
    home.mkdir(parents=True, exist_ok=True)
    copy = ["gcloud", "storage", "rsync", "--recursive", "--exclude=.*/checkpoints/.*"]
    if subprocess.run([*copy, source, home]).returncode:
        raise ValueError(f"could not copy {source} to {home}: see the message of gcloud above")
