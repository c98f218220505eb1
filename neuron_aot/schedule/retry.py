"""Trying again what was killed or lost, with fewer workers at once; never what would fail again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from neuron_aot_runtime.contract.errors import NeuronAotError, TransientCompileError

from .local import Finished, Noted, Started

ATTEMPTS = 3


@dataclass(frozen=True)
class Retried:
    """Task ``index`` was killed or lost; it runs again when the others have ended."""

    index: int
    error: NeuronAotError


#: Runs the tasks of these indices with so many workers; events carry positions in that sequence.
Run = Callable[[Sequence[int], int], Iterator[Started | Noted | Finished]]


def run_retrying(run: Run, count: int, *, jobs: int) -> Iterator[Started | Noted | Retried | Finished]:
    """Run ``count`` tasks. A task that ends in TransientCompileError is tried at most ``ATTEMPTS`` times.

    The tries come after all other tasks, with half of the workers each time: memory is the usual reason.
    """
    left: Sequence[int] = range(count)
    for attempt in range(1, ATTEMPTS + 1):
        again = []
        with closing(run(left, jobs)) as events:
            for event in events:
                event = replace(event, index=left[event.index])
                transient = isinstance(event, Finished) and isinstance(event.error, TransientCompileError)
                if transient and attempt < ATTEMPTS:
                    again.append(event.index)
                    yield Retried(event.index, event.error)
                else:
                    yield event
        if not again:
            return
        left, jobs = again, max(jobs // 2, 1)
