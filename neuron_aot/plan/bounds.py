"""How much of a bucket can be padding, and what a grid takes in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..program import ModelLayout, ProgramPlan


@dataclass(frozen=True, kw_only=True)
class Bound:
    """``least_size``, ``least_context``: what the smallest step that runs this program holds.

    ``padding``: the padding of that step's rows (tokens of a prompt, sequences of a batch), as a share of the real ones.
    """

    least_size: int
    least_context: int
    padding: float


def padding_bounds(programs: Sequence[ProgramPlan]) -> dict[str, Bound]:
    """The bound of each program by name. ``programs``: a whole grid, so that the next smaller bucket is in it."""
    bounds = {}
    for program in programs:
        bucket = program.bucket
        others = [item.bucket for item in programs if item.phase == program.phase]
        size = 1 + max((other.size for other in others if other.size < bucket.size), default=0)
        narrower = [other.context for other in others if other.size == bucket.size and other.context < bucket.context]
        least_context = 1 + max(narrower, default=0)
        if program.phase == "prefill":
            least_context = max(least_context, size)
        bounds[program.name] = Bound(least_size=size, least_context=least_context, padding=(bucket.size - size) / size)
    return bounds


def device_bytes(layout: ModelLayout) -> dict[str, int]:
    """Bytes of a device's memory by what they hold; programs come on top."""
    return {
        "weights": layout.weight_bytes,
        "kv_cache": sum(spec.nbytes for spec in layout.states),
    }
