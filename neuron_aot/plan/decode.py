"""Choosing decode batch and context buckets from an occupancy.

The programs are the product of both lists, so one dimension at a time is exact given the other (``optimize``), and the
two take turns until neither improves. No choice can cost less than ``least_work``: the bound that is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .occupancy import Occupancy
from .optimize import choose_sizes


@dataclass(frozen=True)
class DecodeChoice:
    """``batches`` end in max_num_seqs; ``contexts`` without the implicit max_model_len. ``work``: see decode_work."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    work: float


class DecodePlanner:
    """``attention``: work of one token of context in units of one row's linear work. ``longest``: max_model_len,
    rounded up to a block."""

    def __init__(self, occupancy: Occupancy, *, attention: float, longest: int) -> None:
        self._steps_BU = occupancy.steps_BU
        self._attention = attention
        self._batches_B = np.arange(len(self._steps_BU))
        self._contexts_U = np.minimum(np.arange(self._steps_BU.shape[1]) * occupancy.unit, longest)
        self._contexts_U[-1] = longest

    def choose(self, num_batches: int, num_contexts: int) -> DecodeChoice:
        """The best lists of at most that many sizes (``num_contexts`` without max_model_len)."""
        contexts = (int(self._contexts_U[-1]),)
        best: DecodeChoice | None = None
        while True:
            batches = self._best_batches(contexts, num_batches)
            contexts = self._best_contexts(batches, num_contexts + 1)
            choice = DecodeChoice(batches, contexts[:-1], self.work(batches, contexts))
            if best is not None and choice.work >= best.work:
                return best
            best = choice

    def work(self, batches: tuple[int, ...], contexts: tuple[int, ...]) -> float:
        """Work of serving the occupancy, in units of one row's linear work; ``contexts`` with the longest."""
        batch_B, context_U = self._served(batches, contexts)
        return float(batch_B @ self._steps_BU @ (1.0 + self._attention * context_U))

    def least_work(self) -> float:
        """Below any choice: a bucket for every batch and every context."""
        return float(self._batches_B @ self._steps_BU @ (1.0 + self._attention * self._contexts_U))

    def batch_padding(self, batches: tuple[int, ...]) -> float:
        """Padding rows as a share of the decoded tokens."""
        steps_B = self._steps_BU.sum(axis=1)
        tokens = int(steps_B @ self._batches_B)
        return float(steps_B @ _fit(batches, self._batches_B) / tokens - 1) if tokens else 0.0

    def context_padding(self, contexts: tuple[int, ...], context_tokens: int) -> float:
        """Context that real rows attend to beyond their own, as a share of their own; ``contexts`` with the longest."""
        served = self._batches_B @ self._steps_BU @ _fit(contexts, self._contexts_U)
        return float(served / context_tokens - 1) if context_tokens else 0.0

    def _served(self, batches: tuple[int, ...], contexts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        return _fit(batches, self._batches_B), _fit(contexts, self._contexts_U)

    def _best_batches(self, contexts: tuple[int, ...], limit: int) -> tuple[int, ...]:
        row_U = 1.0 + self._attention * _fit(contexts, self._contexts_U)
        weights_B = self._steps_BU @ row_U
        return choose_sizes(self._batches_B[1:], weights_B[1:], limit)[-1]

    def _best_contexts(self, batches: tuple[int, ...], limit: int) -> tuple[int, ...]:
        weights_U = _fit(batches, self._batches_B) @ self._steps_BU
        # Nothing attends to no token; a context without demand would only cost a program.
        used = np.flatnonzero(weights_U[1:-1] > 0) + 1
        kept = np.append(used, len(weights_U) - 1)
        return choose_sizes(self._contexts_U[kept], weights_U[kept], limit)[-1]


def _fit(buckets: tuple[int, ...], sizes: np.ndarray) -> np.ndarray:
    """The smallest bucket for each size."""
    return np.asarray(buckets)[np.searchsorted(buckets, sizes)]
