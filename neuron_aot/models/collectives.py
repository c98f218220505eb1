"""Collectives as operators of the models: every rank of ``world_size`` calls the same ones in the same order.

Each stays whole when lowered, as one StableHLO operation over all ranks. Their definition here works across the threads
of one process, a thread for each rank (``run_ranks``): that is what programs are compared with. Floats only, as the
Neuron compiler wants it: integers would lose precision over 2^24.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class _Group:
    """The threads of one ``run_ranks``; each sees what all of them brought to the same collective."""

    def __init__(self, world_size: int) -> None:
        self._brought: list[Tensor | None] = [None] * world_size
        self.barrier = threading.Barrier(world_size)

    def exchange(self, rank: int, x: Tensor) -> list[Tensor]:
        self._brought[rank] = x
        self.barrier.wait()
        everyone = list(self._brought)
        self.barrier.wait()
        return everyone


_PLACE: ContextVar[tuple[_Group, int]] = ContextVar("_PLACE")


def run_ranks(world_size: int, function: Callable[[int], Result]) -> list[Result]:
    """``function(rank)`` of every rank, each in its own thread, so that their collectives meet; the results by rank.

    Raises the first rank's error that is not a mere consequence of another's.
    """
    group = _Group(world_size)

    def run(rank: int) -> Result:
        _PLACE.set((group, rank))
        try:
            return function(rank)
        except BaseException:
            group.barrier.abort()  # else the others would wait for this one
            raise

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(copy_context().run, run, rank) for rank in range(world_size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    return [future.result() for future in futures]


def _exchange(x: Tensor) -> tuple[list[Tensor], int]:
    group, rank = _PLACE.get()
    return group.exchange(rank, x), rank


@torch.library.custom_op("neuron_aot::all_reduce", mutates_args=())
def all_reduce(x: Tensor, world_size: int) -> Tensor:
    """The sum of every rank's ``x``."""
    parts, _ = _exchange(x)
    return torch.stack(parts).sum(0)


@all_reduce.register_fake
def _(x, world_size):
    return torch.empty_like(x)


@torch.library.custom_op("neuron_aot::all_gather", mutates_args=())
def all_gather(x: Tensor, dim: int, world_size: int) -> Tensor:
    """Every rank's ``x``, concatenated along ``dim`` in the order of the ranks."""
    parts, _ = _exchange(x)
    return torch.cat(parts, dim)


@all_gather.register_fake
def _(x, dim, world_size):
    return x.new_empty(_scaled(x, dim, world_size, 1))


@torch.library.custom_op("neuron_aot::reduce_scatter", mutates_args=())
def reduce_scatter(x: Tensor, dim: int, world_size: int) -> Tensor:
    """This rank's part, along ``dim``, of the sum of every rank's ``x``."""
    parts, rank = _exchange(x)
    return torch.stack(parts).sum(0).chunk(world_size, dim)[rank].clone()


@reduce_scatter.register_fake
def _(x, dim, world_size):
    return x.new_empty(_scaled(x, dim, 1, world_size))


@torch.library.custom_op("neuron_aot::all_to_all", mutates_args=())
def all_to_all(x: Tensor, split_dim: int, concat_dim: int, world_size: int) -> Tensor:
    """What every rank has for this one: its part of their ``x`` along ``split_dim``, concatenated along ``concat_dim``."""
    parts, rank = _exchange(x)
    return torch.cat([part.chunk(world_size, split_dim)[rank] for part in parts], concat_dim)


@all_to_all.register_fake
def _(x, split_dim, concat_dim, world_size):
    split = x.new_empty(_scaled(x, split_dim, 1, world_size))
    return x.new_empty(_scaled(split, concat_dim, world_size, 1))


def _scaled(x: Tensor, dim: int, times: int, over: int) -> list[int]:
    shape = list(x.shape)
    if shape[dim] % over:
        raise ValueError(f"{over} ranks do not divide axis {dim} of {shape}")
    shape[dim] = shape[dim] * times // over
    return shape
