"""Checkpoints: safetensors files as memory maps, read by their published format (no pickle, no torch).

A safetensors file is eight bytes of little-endian header length, a JSON header (name -> dtype, shape, data offsets)
and the tensors' bytes. The package's numpy API cannot give a bfloat16 or float8 tensor, so the header is read here;
that also makes every tensor a view of the file, of which only the bytes in use are ever read.
"""

from __future__ import annotations

import json
import math
import mmap
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from .contract.errors import CheckpointError

_DTYPES = {
    "F64": np.dtype(np.float64), "F32": np.dtype(np.float32), "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16), "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2), "I64": np.dtype(np.int64), "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16), "I8": np.dtype(np.int8), "U64": np.dtype(np.uint64), "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16), "U8": np.dtype(np.uint8), "BOOL": np.dtype(np.bool_),
}  # fmt: skip
# Stands for a dtype that is not in the table: kept out of the way until somebody wants the tensor, for a checkpoint
# may hold more than the bundle needs.
UNREADABLE = np.dtype((np.void, 1))
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: the file, and its bytes there, [start, stop)."""

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


class Checkpoint:
    """The tensors of one checkpoint directory, by name. Opening reads headers only. For several threads."""

    def __init__(self, tensors: Mapping[str, TensorEntry]) -> None:
        self.tensors = tensors
        self._maps: dict[Path, mmap.mmap] = {}
        self._lock = threading.Lock()

    def array(self, name: str) -> np.ndarray:
        """A view of the whole tensor ``name``, which keeps the file mapped. Raises KeyError, OSError.

        The map is private: writing to the view would not reach the file (devices want writeable memory).
        """
        entry = self.tensors[name]
        flat = np.frombuffer(self._map(entry.path), np.uint8, entry.stop - entry.start, entry.start)
        return flat.view(entry.dtype).reshape(entry.shape)

    def forget(self, name: str, first: int, last: int) -> None:
        """Give back the memory that reading bytes [first, last) of the tensor ``name`` has taken; views stay valid.

        Without it a file's pages count as this process's until the host runs short of memory.
        """
        entry = self.tensors[name]
        start = (entry.start + first) // mmap.PAGESIZE * mmap.PAGESIZE
        stop = entry.start + last
        if stop > start:
            # Nobody writes to a view, so dropped pages are read again, if at all, as they were.
            self._map(entry.path).madvise(mmap.MADV_DONTNEED, start, stop - start)

    def _map(self, path: Path) -> mmap.mmap:
        with self._lock:
            if path not in self._maps:
                with open(path, "rb") as file:
                    self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            return self._maps[path]


def open_checkpoint(directory: Path) -> Checkpoint:
    """The checkpoint in ``directory``: ``model.safetensors``, or the files of ``model.safetensors.index.json``.

    Raises CheckpointError naming what is missing or malformed.
    """
    tensors: dict[str, TensorEntry] = {}
    for path in _files(directory):
        tensors.update(_read_header(path))
    return Checkpoint(tensors)


def _files(directory: Path) -> list[Path]:
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise CheckpointError(
            f"{directory} has no safetensors checkpoint",
            wanted=f"{single.name} or {index.name}",
            found=", ".join(sorted(path.name for path in directory.glob("*"))[:20]) or "nothing",
            next_command="pass a directory with the model's safetensors files as the model",
        )
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index} is not a safetensors index", found=str(error)) from error
    outside = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    missing = [name for name in names if name not in outside and not (directory / name).is_file()]
    if outside or missing:
        raise CheckpointError(
            f"{index} names files that are not beside it",
            details=[f"{name}: missing" for name in missing] + [f"{name!r}: not a plain file name" for name in outside],
            next_command="download the checkpoint again",
        )
    return [directory / name for name in names]


def _read_header(path: Path) -> dict[str, TensorEntry]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise _malformed(path, f"a header of {length} bytes in a file of {size}: truncated, or a Git LFS pointer")
        try:
            header = json.loads(file.read(length))
            entries = {
                name: _entry(path, 8 + length, size, **value)
                for name, value in header.items()
                if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _malformed(path, str(error)) from error
    return entries


def _entry(path: Path, base: int, size: int, *, dtype: str, shape: list, data_offsets: list) -> TensorEntry:
    start, stop = data_offsets
    known = _DTYPES.get(dtype)
    if known is None:
        known = UNREADABLE
    elif stop - start != math.prod(shape) * known.itemsize:
        raise ValueError(f"{stop - start} bytes for {dtype} {shape}")
    if not 0 <= start <= stop <= size - base:
        raise ValueError(f"data at [{start}, {stop}) of {size - base} bytes: the file is truncated")
    return TensorEntry(path, known, tuple(shape), base + start, base + stop)


def _malformed(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a readable safetensors file",
        wanted="a complete safetensors file",
        found=found,
        next_command="download the file again",
    )
