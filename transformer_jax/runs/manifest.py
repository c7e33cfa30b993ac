"""manifest.json: the size and SHA-256 of every other file of a folder, written last.

A folder whose files are those of its manifest is whole.
"""

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path

NAME = "manifest.json"


def write(folder: Path) -> None:
    """Writes the manifest of the files in `folder`, all of which are on disk afterwards.

    It takes the place of one that is there, as in a copy.
    """
    manifest = folder / NAME
    manifest.unlink(missing_ok=True)
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        # On disk before the manifest says so, since older checkpoints are deleted on its word.
        sync(path)
        name = path.relative_to(folder).as_posix()
        files[name] = {"size": path.stat().st_size, "sha256": _sha256(path)}
    manifest.write_text(json.dumps({"files": files}, indent=1))
    sync(manifest)
    sync(folder)


def fault(folder: Path, *, needed: Collection[str] = (), unhashed: str | None = None) -> str | None:
    """Why `folder` is not whole, or None where it is.

    needed: files and folders that the manifest has to list.
    unhashed: a folder in it whose files are checked by their sizes alone.

    Raises OSError where a file cannot be read. A disk that does not answer says nothing about the
    folder, which would be passed over and removed if this returned a fault.
    """
    name = NAME
    try:
        files = json.loads((folder / name).read_text())["files"]
        listed = {name.partition("/")[0] for name in files}
        if missing := [name for name in needed if name not in listed]:
            return f"its {NAME} does not list {missing[0]}"
        for name, file in files.items():
            path = folder / name
            if (size := path.stat().st_size) != file["size"]:
                return f"{name} has {size} bytes, the manifest says {file['size']}"
            hashed = unhashed is None or not name.startswith(f"{unhashed}/")
            if hashed and _sha256(path) != file["sha256"]:
                return f"the content of {name} has changed since it was saved (SHA-256 differs)"
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"its {NAME} cannot be parsed"
    except OSError as error:
        raise OSError(
            error.errno,
            f"the folder cannot be read, and is kept as it is ({error.strerror}, of {name}): run "
            "the same command again when it can be",
            str(folder),
        ) from error
    return None


def sync(path: Path) -> None:
    """Waits until a file, or the entries of a folder, are on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
