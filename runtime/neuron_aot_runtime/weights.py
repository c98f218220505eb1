"""Weights: a bundle's declarative weight map, executed for one rank, straight from safetensors.

    source tensor -> part of the rank, zeros at its end -> (transpose) -> concatenate -> cast -> param

Nothing is read before every source has been found with its declared shape. A param that is one contiguous, aligned slice
in its own dtype is a view of the file; anything else is written once, into memory aligned for the device, by several
threads. What has been copied does not stay mapped, so a rank's memory grows to its own shard and not to the checkpoint.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .arrays import ALIGNMENT, aligned_empty, aligned_zeros, numpy_dtype
from .checkpoint import UNREADABLE, Checkpoint, open_checkpoint
from .contract.errors import CheckpointError
from .contract.manifest import Manifest, TensorSpec, WeightEntry, WeightSource

Forget = Callable[[str, int, int], None]

_THREADS = 4  # a copy waits for the disk, or for memory; more bring nothing
_STRETCH = 16 << 20  # bytes of a file that are read before they are given back


@dataclass(frozen=True)
class WeightReport:
    """What loading cost: params, their bytes, those of them that had to be copied, and seconds."""

    params: int
    nbytes: int
    copied: int
    seconds: float


def load_weights(
    manifest: Manifest,
    directory: Path,
    *,
    rank: int = 0,
    put: Callable[[TensorSpec, np.ndarray], None],
    keeps_params: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> WeightReport:
    """Hand every param of ``manifest`` to ``put``, in order and in this thread, as this rank's array.

    ``keeps_params``: whether arrays must stay as they are after ``put`` (see ``Device``).
    ``progress`` is called with (bytes done, bytes in all) after each param. Raises CheckpointError before anything
    is read when the checkpoint does not fit.
    """
    start = time.perf_counter()
    checkpoint = open_checkpoint(directory)
    check_checkpoint(manifest, checkpoint, where=str(directory))
    total = sum(spec.nbytes for spec in manifest.params)
    done = copied = 0
    for spec, entry, (array, is_view) in _read_ahead(checkpoint, manifest, rank):
        copied += 0 if is_view else array.nbytes
        put(spec, array)
        if is_view and not keeps_params:
            (source,) = entry.sources
            checkpoint.forget(source.tensor, 0, checkpoint.tensors[source.tensor].nbytes)
        done += spec.nbytes
        if progress is not None:
            progress(done, total)
    return WeightReport(len(manifest.params), total, copied, time.perf_counter() - start)


def _read_ahead(
    checkpoint: Checkpoint, manifest: Manifest, rank: int
) -> Iterator[tuple[TensorSpec, WeightEntry, tuple[np.ndarray, bool]]]:
    """Every param in order, of which the next few are being read."""
    ahead: deque[tuple[TensorSpec, WeightEntry, Future]] = deque()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="weights") as pool:
        try:
            for spec, entry in zip(manifest.params, manifest.weight_map, strict=True):
                ahead.append((spec, entry, pool.submit(read_param, checkpoint, entry, spec, rank, checkpoint.forget)))
                if len(ahead) > _THREADS:
                    first, made_by, array = ahead.popleft()
                    yield first, made_by, array.result()
            while ahead:
                first, made_by, array = ahead.popleft()
                yield first, made_by, array.result()
        finally:
            pool.shutdown(cancel_futures=True)


def check_checkpoint(manifest: Manifest, checkpoint: Checkpoint, *, where: str) -> None:
    """Compare every source of the weight map with the checkpoint. Raises CheckpointError with all differences."""
    problems: dict[str, None] = {}  # a set that keeps the order; tied weights name a tensor twice
    for entry in manifest.weight_map:
        for source in entry.sources:
            found = checkpoint.tensors.get(source.tensor)
            if found is None:
                problems[f"{source.tensor}: missing (wanted {list(source.shape)}, for {entry.param})"] = None
            elif found.shape != source.shape:
                problems[f"{source.tensor}: wanted {list(source.shape)}, found {list(found.shape)}"] = None
            elif found.dtype == UNREADABLE:
                problems[f"{source.tensor}: stored in a dtype that this runtime cannot read"] = None
    if problems:
        raise CheckpointError(
            f"the checkpoint in {where} does not fit the bundle: {len(problems)} of its tensors differ",
            details=list(problems),
            next_command="serve the model that the bundle was compiled for, or compile a bundle for this one",
        )


def read_param(
    checkpoint: Checkpoint, entry: WeightEntry, spec: TensorSpec, rank: int, forget: Forget | None = None
) -> tuple[np.ndarray, bool]:
    """One param for one rank, of ``spec``'s shape and dtype, and whether it is a view of the file.

    ``forget`` (see ``Checkpoint``) is called with what has been copied.

    Raises CheckpointError when the parts that the map declares do not make up that shape.
    """
    shapes = [_whole_shape(source) for source in entry.sources]
    if entry.transpose:
        shapes = [(*shape[:-2], shape[-1], shape[-2]) for shape in shapes]
    shape = list(shapes[0])
    if len(shapes) > 1:
        shape[entry.axis] = sum(shape[entry.axis] for shape in shapes)
    if tuple(shape) != spec.shape:
        raise CheckpointError(
            f"the weight map does not make the param {spec.name}", wanted=str(list(spec.shape)), found=str(shape)
        )
    parts = [_part(checkpoint.array(source.tensor), source, rank) for source in entry.sources]
    sizes = [part.swapaxes(-1, -2).shape if entry.transpose else part.shape for part in parts]
    padded = sizes != shapes
    dtype = numpy_dtype(spec.dtype)
    if len(parts) == 1 and not padded and not entry.transpose and is_usable(parts[0], dtype):
        return parts[0], True
    result = (aligned_zeros if padded else aligned_empty)(spec.shape, dtype)
    offset = 0
    for source, part, size, whole in zip(entry.sources, parts, sizes, shapes, strict=True):
        index = [slice(0, length) for length in size]
        if len(parts) > 1:
            index[entry.axis] = slice(offset, offset + size[entry.axis])
        place = result[tuple(index)]
        for first, last in _copy(source, part, place.swapaxes(-1, -2) if entry.transpose else place, rank):
            if forget is not None:
                forget(source.tensor, first, last)
        offset += whole[entry.axis]
    return result, False


def is_usable(part: np.ndarray, dtype: np.dtype) -> bool:
    """Whether a device can take ``part`` of a file where it lies."""
    return part.dtype == dtype and part.flags.c_contiguous and part.ctypes.data % ALIGNMENT == 0


def _copy(source: WeightSource, part: np.ndarray, place: np.ndarray, rank: int) -> Iterator[tuple[int, int]]:
    """``place`` = ``part``, a stretch at a time; yields which bytes [first, last) of the tensor that took."""
    if not part.size:
        return
    shape, itemsize = source.shape, part.itemsize
    if part.dtype == place.dtype:  # numpy copies its own dtypes without holding Python's lock, ml_dtypes' it does not
        bits = np.dtype(f"u{itemsize}")
        part, place = part.view(bits), place.view(bits)
    row = math.prod(shape[1:]) * itemsize  # of the file, of which the part may be a piece
    skipped = 0 if source.shard is None or source.shard.axis else source.shard.range(rank, shape[0])[0]
    step = max(1, _STRETCH // row)
    for start in range(0, len(part), step):
        stop = min(start + step, len(part))
        place[start:stop] = part[start:stop]
        yield (skipped + start) * row, (skipped + stop) * row


def _whole_shape(source: WeightSource) -> tuple[int, ...]:
    """The shape of a rank's part, its zeros included."""
    shape = list(source.shape)
    if source.shard is not None:
        shape[source.shard.axis] = source.shard.size
    return tuple(shape)


def _part(array: np.ndarray, source: WeightSource, rank: int) -> np.ndarray:
    """What the checkpoint has of a rank's part; it may be shorter than wanted, or empty."""
    if source.shard is None:
        return array
    index = [slice(None)] * array.ndim
    index[source.shard.axis] = slice(*source.shard.range(rank, array.shape[source.shard.axis]))
    return array[tuple(index)]
