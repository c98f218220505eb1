"""A choice of bucket lists, what it costs, and the plan that proposes it. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from .limits import Taken
from .occupancy import Occupancy
from .usage import ProgramUse


@dataclass(frozen=True)
class Buckets:
    """Bucket lists under their names in neuron_config; contexts without the implicit max_model_len."""

    num_batched_tokens_buckets: tuple[int, ...]
    num_seqs_buckets: tuple[int, ...]
    decode_context_length_buckets: tuple[int, ...]

    def as_neuron_config(self) -> dict[str, list[int] | None]:
        """As a recipe has it."""
        return {name: list(sizes) or None for name, sizes in vars(self).items()}


@dataclass(frozen=True)
class Score:
    """What ``buckets`` cost for some traffic. Shares of the real: prompt tokens, decoded tokens, their context.

    ``prefill_work`` and ``decode_work``: in units of one token's linear work; padding included.
    """

    buckets: Buckets
    taken: Taken
    padding: dict[str, float]
    prefill_work: float
    decode_work: float

    @property
    def programs(self) -> int:
        return self.taken.programs

    @property
    def work(self) -> float:
        return self.prefill_work + self.decode_work


@dataclass(frozen=True, kw_only=True)
class TrafficPlan:
    """``default``: powers of two. ``least_decode_work``: below any choice. ``uses``: what the traffic does with each
    program of the choice.

    ``unlimited``: the choice without limits, which breaks the limits ``binding``; None when it is the choice.
    ``held_out``: (default, chosen) planned from the first half of the requests, scored on the second; None for few.
    """

    default: Score
    chosen: Score
    uses: tuple[ProgramUse, ...]
    unlimited: Score | None
    binding: tuple[str, ...]
    occupancy: Occupancy
    least_decode_work: float
    held_out: tuple[Score, Score] | None
