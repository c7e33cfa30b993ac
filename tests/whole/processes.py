"""What the processes that tests start run under."""

import os
from pathlib import Path

from configs import default


def environment(folder: Path) -> dict[str, str]:
    """Keeps what is compiled in `folder`, for all of them, and hides PyTorch.

    Where it is installed, as it is for other tests, importing it takes two seconds of every start.
    """
    (folder / "hidden").mkdir(exist_ok=True)
    (folder / "hidden" / "torch.py").write_text("raise ImportError")
    paths = (folder / "hidden", Path(default.__file__).parents[1])
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
