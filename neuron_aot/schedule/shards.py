"""A share of the work that each of many machines finds by itself, without asking the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from neuron_aot_runtime.contract.errors import UsageError

Item = TypeVar("Item")


@dataclass(frozen=True)
class Shard:
    """Part ``index`` (from 1) of ``count``."""

    index: int
    count: int

    def share(self, ordered: Sequence[Item]) -> list[Item]:
        """Every ``count``-th of the items: neighbours, which cost about the same, go to different shards."""
        return list(ordered[self.index - 1 :: self.count])

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str) -> Shard:
    """``3/8``. Raises UsageError."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise UsageError("--shard names no part of the work", wanted="i/n with 1 <= i <= n, as in 3/8", found=text)
    return Shard(int(found[1]), int(found[2]))
