"""Weights: a bundle's declarative weight map, executed for one rank, straight from safetensors.

    source tensor -> part of the rank, zeros at its end -> (transpose) -> concatenate -> cast -> param

Nothing is read before every source has been found with its declared shape. A param that is one contiguous slice in
its own dtype is a view of the file; anything else is written once, into memory aligned for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .arrays import aligned_empty, aligned_zeros, numpy_dtype
from .checkpoint import UNREADABLE, Checkpoint, open_checkpoint
from .contract.errors import CheckpointError
from .contract.manifest import Manifest, TensorSpec, WeightEntry, WeightSource


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
    progress: Callable[[int, int], None] | None = None,
) -> WeightReport:
    """Hand every param of ``manifest`` to ``put``, in order, as this rank's array.

    ``progress`` is called with (bytes done, bytes in all) after each param. Raises CheckpointError before anything
    is read when the checkpoint does not fit.
    """
    start = time.perf_counter()
    checkpoint = open_checkpoint(directory)
    check_checkpoint(manifest, checkpoint, where=str(directory))
    total = sum(spec.nbytes for spec in manifest.params)
    done = copied = 0
    for spec, entry in zip(manifest.params, manifest.weight_map, strict=True):
        array, is_view = read_param(checkpoint, entry, spec, rank)
        copied += 0 if is_view else array.nbytes
        put(spec, array)
        done += spec.nbytes
        if progress is not None:
            progress(done, total)
    return WeightReport(len(manifest.params), total, copied, time.perf_counter() - start)


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


def read_param(checkpoint: Checkpoint, entry: WeightEntry, spec: TensorSpec, rank: int) -> tuple[np.ndarray, bool]:
    """One param for one rank, of ``spec``'s shape and dtype, and whether it is a view of the file.

    Raises CheckpointError when the parts that the map declares do not make up that shape.
    """
    parts = [_part(checkpoint.array(source.tensor), source, rank) for source in entry.sources]
    shapes = [_whole_shape(source) for source in entry.sources]
    if entry.transpose:
        parts = [part.swapaxes(-1, -2) for part in parts]
        shapes = [(*shape[:-2], shape[-1], shape[-2]) for shape in shapes]
    dtype = numpy_dtype(spec.dtype)
    shape = list(shapes[0])
    if len(parts) > 1:
        shape[entry.axis] = sum(shape[entry.axis] for shape in shapes)
    if tuple(shape) != spec.shape:
        raise CheckpointError(
            f"the weight map does not make the param {spec.name}", wanted=str(list(spec.shape)), found=str(shape)
        )
    padded = any(part.shape != whole for part, whole in zip(parts, shapes, strict=True))
    if len(parts) == 1 and not padded and parts[0].dtype == dtype and parts[0].flags.c_contiguous:
        return parts[0], True
    result = (aligned_zeros if padded else aligned_empty)(spec.shape, dtype)
    # Assigning casts, transposes and concatenates in one pass over the bytes.
    offset = 0
    for part, whole in zip(parts, shapes, strict=True):
        index = [slice(0, length) for length in part.shape]
        index[entry.axis] = slice(offset, offset + part.shape[entry.axis])
        result[tuple(index)] = part
        offset += whole[entry.axis]
    return result, False


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
