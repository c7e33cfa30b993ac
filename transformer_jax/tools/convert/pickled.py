"""Tensors of the files that torch.save writes, read without torch; nothing in them is executed.

Such a file is a zip: NAME/data.pkl is a pickle of a dict from names to tensors, and NAME/data/KEY
the numbers of a storage as they lay in memory (pytorch: torch/serialization.py). A pickle is a
program that may call whatever Python can import: here the three functions of `find_class`.
"""

import collections
import io
import math
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.tools.convert.safetensors import DTYPES, Tensor

ONE_FILE = "pytorch_model.bin"
_KINDS = "Double Float Half BFloat16 Long Int Byte Bool".split()
_STORAGES = dict(zip((f"torch.{kind}Storage" for kind in _KINDS), DTYPES, strict=True))


class _Refused(ValueError):
    """A file is whole, but not one that is read here."""


class _Storage(NamedTuple):
    """Numbers in the file: from which byte, and how many."""

    dtype: str
    start: int
    count: int


def tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not whole, of PyTorch before 1.6, or holds anything but tensors.
    """
    try:
        with zipfile.ZipFile(path) as file:
            content = _Unpickler(path, file).load()
    except (OSError, _Refused):
        raise
    except Exception as error:  # a pickle can raise anything
        raise ValueError(
            f"{path}: not a whole file of PyTorch 1.6 or later ({error}): download it again, or "
            "load and save it with a PyTorch of today"
        ) from error
    for name, tensor in content.items() if isinstance(content, dict) else [("the whole", content)]:
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ValueError(f"{path}: {name!r} is no tensor, but a {type(tensor).__name__}")
    return dict(content)


class _Unpickler(pickle.Unpickler):
    """Makes the tensors of an opened file, without their numbers."""

    def __init__(self, path: Path, file: zipfile.ZipFile):
        (name,) = (name for name in file.namelist() if name.endswith("/data.pkl"))
        self._path, self._file, self._root = path, file, name.removesuffix("data.pkl")
        super().__init__(io.BytesIO(file.read(self._entry("data.pkl"))))

    def find_class(self, module: str, name: str) -> Any:
        """What the pickle may call, and names of storages."""
        functions = {
            "collections.OrderedDict": collections.OrderedDict,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
        }
        known, key = functions | _STORAGES, f"{module}.{name}"
        if key not in known:
            raise _Refused(f"{self._path} asks for {key}, which no tensor needs: it is not read")
        return known[key]

    def persistent_load(self, pid: Any) -> _Storage:
        """The storage that the pickle names."""
        _, dtype, key, _, count = pid
        info = self._entry(f"data/{key}")
        with self._path.open("rb") as file:
            file.seek(info.header_offset + 26)  # the lengths of what follows 30 bytes of header
            start = info.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
        size = count * DTYPES[dtype].itemsize
        if not 0 <= size <= info.file_size or start + size > self._path.stat().st_size:
            raise _Refused(f"{self._path}: storage {key} does not have {count} numbers")
        return _Storage(dtype, start, count)

    def _entry(self, name: str) -> zipfile.ZipInfo:
        info = self._file.getinfo(self._root + name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise _Refused(f"{self._path}: {name} is compressed, which PyTorch's files never are")
        return info

    def _tensor(self, storage: _Storage, first: Any, shape: Any, strides: Any, *_: Any) -> Tensor:
        sound = all(type(n) is int and n >= 0 for n in (first, *shape, *strides))
        last = first + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if not sound or (math.prod(shape) and last >= storage.count):
            raise _Refused(f"{self._path}: a tensor of {shape} lies outside of its storage")
        dtype = DTYPES[storage.dtype]
        start = storage.start + first * dtype.itemsize
        return Tensor(self._path, dtype, shape, start, strides=strides)
