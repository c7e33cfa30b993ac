"""Safetensors files: tensors by name, of which only what is asked for is read.

A file is the length of its header (8 bytes, little-endian), the header (JSON: dtype, shape, place
of each tensor) and the tensors (github.com/huggingface/safetensors, README).
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

ONE_FILE = "model.safetensors"
_PICKLED = "*.bin", "*.pt", "*.pth", "*.ckpt"
_METADATA = "__metadata__"
DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(bool),
}


class Tensor(NamedTuple):
    """Where a tensor is.

    start: its first byte in the file. strides: from one entry to the next along each axis, in
    entries; None: those of rows. of, view: the tensor that it is made of, and how; None: it is as
    it is.
    """

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    strides: tuple[int, ...] | None = None
    of: "Tensor | None" = None
    view: Callable[[np.ndarray], np.ndarray] | None = None

    def through(self, view: Callable[[np.ndarray], np.ndarray]) -> "Tensor":
        """What a view makes of it: of each entry of its first axis on its own, as float32."""
        entry = view(np.zeros((1, *self.shape[1:]), np.float32))
        return self._replace(shape=(*self.shape[:1], *entry.shape[1:]), of=self, view=view)

    def read(self) -> np.ndarray:
        """The tensor, mapped: what is sliced out of it is all that is read."""
        if self.of is not None and self.view is not None:
            return self.view(self.of.read().astype(np.float32))
        if not math.prod(self.shape):
            return np.zeros(self.shape, self.dtype)
        if self.strides is None:
            return np.memmap(self.path, self.dtype, "r", self.start, self.shape)
        last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        entries = np.memmap(self.path, self.dtype, "r", self.start, (last + 1,))
        steps = [step * self.dtype.itemsize for step in self.strides]
        return np.lib.stride_tricks.as_strided(entries, self.shape, steps, writeable=False)


# How the tensors of a file are found.
Reader = Callable[[Path], dict[str, Tensor]]


def find(folder: Path, others: Mapping[str, Reader] = {}) -> dict[str, Tensor]:
    """The tensors of a checkpoint, of one file or of all that its index names.

    others: how other files are read, by names that count where there are no safetensors.

    Raises:
        FileNotFoundError: there is no such folder or file.
        ValueError: weights are pickled alone, or a file is cut off or is none.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"--checkpoint={folder}: there is no such folder")
    for one_file, read in {ONE_FILE: tensors, **others}.items():
        index = folder / f"{one_file}.index.json"
        if (folder / one_file).is_file():
            return read(folder / one_file)
        if index.is_file():
            files = read_json(index).get("weight_map")
            if not isinstance(files, dict) or not all(isinstance(f, str) for f in files.values()):
                raise ValueError(f"{index}: there is no weight_map from tensors to files")
            shards = {name: read(folder / Path(name).name) for name in sorted({*files.values()})}
            if missing := [name for name, file in files.items() if name not in shards[file]]:
                raise ValueError(f"{folder / files[missing[0]]}: there is no tensor {missing[0]!r}")
            return {name: shards[file][name] for name, file in files.items()}
    if pickled := sorted(path.name for kind in _PICKLED for path in folder.glob(kind)):
        raise ValueError(
            f"{folder}: {pickled[0]} is pickled, which may run any program: --pickled reads the "
            "tensors of a pytorch_model.bin, and runs nothing; or save the model again with "
            "save_pretrained, which writes safetensors"
        )
    raise FileNotFoundError(f"{folder}: there is neither {ONE_FILE} nor {ONE_FILE}.index.json")


def write(path: Path, parts: Mapping[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]]):
    """Writes float32 tensors, each made when its turn comes, from its shape and a function."""
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    start = 0
    for name, (shape, _) in parts.items():
        end = start + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that tensors lie where their dtypes may
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, (shape, make) in parts.items():
            tensor = make()
            assert tensor.shape == shape, (name, tensor.shape, shape)
            file.write(np.ascontiguousarray(tensor, "<f4").data)


def tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file. Raises FileNotFoundError and ValueError as `find` does."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(f"{path}: not a whole safetensors file ({size:,} bytes)")
        header = read_json(path, file.read(length))
    first, by_name = 8 + length, {}
    for name, entry in header.items():
        if name == _METADATA:
            continue
        try:
            begin, end = entry["data_offsets"]
            dtype, shape = DTYPES.get(entry["dtype"]), tuple(entry["shape"])
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path}: the header does not describe {name!r}") from error
        if dtype is None:
            raise ValueError(
                f"{path}: {name!r} is of {entry['dtype']}, expected one of {', '.join(DTYPES)}"
            )
        if end - begin != dtype.itemsize * math.prod(shape) or begin < 0:
            raise ValueError(f"{path}: {name!r} of shape {shape} does not have {end - begin} bytes")
        if first + end > size:
            raise ValueError(
                f"{path} is cut off: it has {size:,} bytes, and {name!r} ends at {first + end:,}; "
                "download it again"
            )
        by_name[name] = Tensor(path, dtype, shape, first + begin)
    return by_name


def read_if_there(path: Path, kind: type = dict) -> Any:
    """As `read_json`; an empty one where there is no file."""
    return read_json(path, kind=kind) if path.is_file() else kind()


def read_json(path: Path, data: bytes | None = None, kind: type = dict) -> Any:
    """The object or list in a JSON file, or in a part of one. Raises ValueError."""
    try:
        content = json.loads(path.read_bytes() if data is None else data)
    except ValueError as error:
        raise ValueError(f"{path}: not a whole file ({error})") from error
    if not isinstance(content, kind):
        expected = "object" if kind is dict else "list"
        raise ValueError(f"{path}: expected a JSON {expected}, got {str(content)[:40]!r}")
    return content
