"""What recorded traffic does with each program of a choice: how often it runs, and how much of it is padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from neuron_aot_runtime.contract.buckets import program_name
from neuron_aot_runtime.contract.manifest import Bucket

from .occupancy import Occupancy
from .optimize import Pieces, piece_contexts


@dataclass(frozen=True, kw_only=True)
class ProgramUse:
    """``steps``: runs of the program. ``padding``: its padding rows as a share of the real ones; None if it never runs.

    ``seconds``: the estimate of its compile.
    """

    name: str
    phase: str
    size: int
    context: int
    steps: int
    padding: float | None
    seconds: float


def program_uses(
    seconds: Mapping[tuple[str, Bucket], float], pieces: Pieces, contexts_C: np.ndarray, occupancy: Occupancy,
    *, block_size: int, longest: int,
) -> list[ProgramUse]:  # fmt: skip
    """The use of every program of ``seconds``, whose values are the estimates of their compiles.

    ``contexts_C``: ascending, of prefill; ``longest``: max_model_len, rounded up to a block.
    """
    sizes = {
        phase: sorted({bucket.size for kind, bucket in seconds if kind == phase}) for phase in ("prefill", "decode")
    }
    counts: dict[tuple[str, Bucket], list[int]] = {program: [0, 0] for program in seconds}

    def count(phase: str, size: int, context: int, steps: int, rows: int) -> None:
        entry = counts[phase, Bucket(size=size, context=context)]
        entry[0] += steps
        entry[1] += rows

    size_P = np.asarray(sizes["prefill"])[np.searchsorted(sizes["prefill"], pieces.tokens_P)]
    context_P = piece_contexts(pieces, size_P, contexts_C, block_size)
    for size, context, tokens, times in zip(
        size_P.tolist(), context_P.tolist(), pieces.tokens_P.tolist(), pieces.counts_P.tolist(), strict=True
    ):
        count("prefill", size, context, times, tokens * times)
    contexts = sorted({bucket.context for phase, bucket in seconds if phase == "decode"})
    for batch, unit in zip(*np.nonzero(occupancy.steps_BU), strict=True):
        steps = int(occupancy.steps_BU[batch, unit])
        size = sizes["decode"][np.searchsorted(sizes["decode"], batch)]
        context = contexts[np.searchsorted(contexts, min(int(unit) * occupancy.unit, longest))]
        count("decode", size, context, steps, int(batch) * steps)
    return [
        ProgramUse(
            name=program_name(phase, bucket),
            phase=phase,
            size=bucket.size,
            context=bucket.context,
            steps=steps,
            padding=steps * bucket.size / rows - 1 if rows else None,
            seconds=seconds[phase, bucket],
        )
        for (phase, bucket), (steps, rows) in counts.items()
    ]
