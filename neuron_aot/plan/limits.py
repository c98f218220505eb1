"""What a plan may take, and what a choice of buckets takes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from neuron_aot_runtime.contract.manifest import Bucket

GIB = 1 << 30


@dataclass(frozen=True)
class Price:
    """What making and holding one program takes: ``seconds`` of a worker, ``nbytes`` of device memory."""

    seconds: float
    nbytes: int


#: The price of a phase's program at a bucket.
Pricing = Callable[[str, Bucket], Price]


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a choice takes. ``seconds``: to compile with the workers of the limits; ``hbm_bytes``: of a rank's device,
    weights and KV cache included."""

    programs: int
    seconds: float
    hbm_bytes: int

    def of(self, option: str) -> float:
        """What a limit's option is compared with."""
        taken = {"--max-programs": self.programs, "--max-compile-minutes": self.seconds, "--max-hbm": self.hbm_bytes}
        return taken[option]


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """None: no limit of this kind. ``max_prefill_buckets``: token buckets; None: as many as the default has.

    ``max_programs``: of both phases together. ``max_compile_seconds``: with ``jobs`` workers. ``max_hbm_bytes``: of a
    rank's device memory. ``replicas``: servers that share the traffic; None: as many as keep up with it.
    """

    max_prefill_buckets: int | None = None
    max_programs: int | None = None
    max_compile_seconds: float | None = None
    max_hbm_bytes: int | None = None
    jobs: int = 1
    replicas: int | None = None

    def compile_seconds(self, programs: list[Price]) -> float:
        """No schedule ends before the longest program, or before the work is shared out evenly."""
        work = [price.seconds for price in programs]
        return max(max(work), sum(work) / self.jobs)

    @property
    def given(self) -> dict[str, float]:
        """The limits on what a choice takes, by their options."""
        limits = {
            "--max-programs": self.max_programs,
            "--max-compile-minutes": self.max_compile_seconds,
            "--max-hbm": self.max_hbm_bytes,
        }
        return {option: limit for option, limit in limits.items() if limit is not None}

    def exceeded(self, taken: Taken) -> tuple[str, ...]:
        """The limits that ``taken`` breaks, as their options."""
        return tuple(option for option, limit in self.given.items() if taken.of(option) > limit)

    def told(self, option: str) -> str:
        """A given limit as a user writes it."""
        return tell(option, self.given[option])


def tell(option: str, amount: float) -> str:
    """An option with its value as a user writes it: minutes and GiB with two decimals, rounded up."""
    units = {"--max-programs": 1, "--max-compile-minutes": 60, "--max-hbm": GIB}
    return f"{option} {math.ceil(amount / units[option] * 100 - 1e-6) / 100:.10g}"
