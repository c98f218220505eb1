"""Host arrays that a device takes as they are: dtypes by a manifest's names, memory aligned for PJRT."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

ALIGNMENT = 64  # bytes; PJRT's CPU client copies memory that is not aligned to this, and numpy itself promises 16


def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype of a manifest's dtype name; bfloat16 and float8 are those of ``ml_dtypes``."""
    return np.dtype(getattr(ml_dtypes, name, name))


def aligned_empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array whose data starts at a multiple of ALIGNMENT."""
    return _aligned(np.empty, shape, dtype)


def aligned_zeros(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """A zeroed array whose data starts at a multiple of ALIGNMENT; its pages are untouched until they are written."""
    return _aligned(np.zeros, shape, dtype)


def aligned(array: np.ndarray) -> np.ndarray:
    """``array`` itself where it is aligned, contiguous and writeable (dlpack wants that), else a copy that is."""
    if array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def _aligned(allocate, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = allocate(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(tuple(shape))
