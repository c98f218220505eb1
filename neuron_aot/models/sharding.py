"""How a model's axes are divided over the ranks of tensor parallelism; plain numbers, no tensors.

Sizes that do not divide are padded: every rank computes with the same shapes, and what a rank lacks is zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_aot_runtime.contract.errors import RecipeError
from neuron_aot_runtime.contract.manifest import Shard

Part = tuple[int, int]


@dataclass(frozen=True)
class Division:
    """An axis of ``length``, divided: rank r has ``parts[r]``, [start, stop), with zeros at its end up to ``size``."""

    length: int
    size: int
    parts: tuple[Part, ...]

    def times(self, width: int) -> Division:
        """The same division of an axis that has ``width`` places for each of this one."""
        parts = tuple((start * width, stop * width) for start, stop in self.parts)
        return Division(self.length * width, self.size * width, parts)

    def shard(self, axis: int) -> Shard | None:
        """How the weight map says it, of a tensor's ``axis``; None where one rank has everything."""
        if len(self.parts) == 1:
            return None
        regular = Shard(axis=axis, size=self.size)
        if all(regular.range(rank, self.length) == part for rank, part in enumerate(self.parts)):
            return regular
        return Shard(axis=axis, size=self.size, ranges=self.parts)


def even(length: int, world_size: int, what: str) -> Division:
    """``length`` of ``what`` (a config.json field) in equal parts, the last ones shorter or empty. Raises RecipeError."""
    _refuse_more_ranks(length, world_size, what)
    size = -(-length // world_size)
    starts = (min(rank * size, length) for rank in range(world_size))
    return Division(length, size, tuple((start, min(start + size, length)) for start in starts))


def attention_heads(heads: int, kv_heads: int, world_size: int) -> tuple[Division, Division]:
    """(query heads, KV heads) of each rank: a rank has as many query heads for each of its KV heads, in their order.

    Up to as many ranks as KV heads, KV heads are divided, and bring their query heads. With more ranks, several share a
    KV head, each with a copy of it and a part of its query heads. Raises RecipeError for more ranks than query heads.
    """
    _refuse_more_ranks(heads, world_size, "num_attention_heads")
    group = heads // kv_heads
    if world_size <= kv_heads:
        divided = even(kv_heads, world_size, "num_key_value_heads")
        return divided.times(group), divided
    queries, copies = [], []
    for rank in range(world_size):
        head = rank * kv_heads // world_size
        first, after = (-(-edge * world_size // kv_heads) for edge in (head, head + 1))
        sharing = after - first  # ranks with this KV head
        start, stop = ((rank - first + edge) * group // sharing for edge in (0, 1))
        queries.append((head * group + start, head * group + stop))
        copies.append((head, head + 1))
    widest = max(stop - start for start, stop in queries)
    return Division(heads, widest, tuple(queries)), Division(kv_heads, 1, tuple(copies))


def _refuse_more_ranks(length: int, world_size: int, what: str) -> None:
    if world_size > length:
        raise RecipeError(
            f"tensor_parallel_size {world_size} cannot split a model with {what} {length}",
            wanted=f"tensor_parallel_size of at most {length}",
            found=str(world_size),
            next_command="lower tensor_parallel_size",
        )
