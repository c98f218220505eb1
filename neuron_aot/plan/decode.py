"""Choosing decode batch and context buckets from an occupancy.

The programs are the product of both lists, so one dimension at a time is exact given the other (``optimize``), and the
two take turns until neither improves. No choice can cost less than ``least_work``: the bound that is reported.

A record never shows everything: one burst more, and a batch between the recorded ones and max_num_seqs would run in the
largest program. So a small share of the steps is taken to be of batches, and of contexts, that were not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .occupancy import Occupancy
from .optimize import choose_sizes

#: The share of steps of any batch, likelier the smaller, and the same again of any context.
UNSEEN_SHARE = 0.01


@dataclass(frozen=True)
class DecodeChoice:
    """``batches`` end in max_num_seqs; ``contexts`` without the implicit max_model_len.

    ``work``: what it costs, the unseen steps included, in units of one row's linear work.
    """

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
        self._demand_BU = _with_unseen(self._steps_BU)

    def choose(self, num_batches: int, num_contexts: int) -> DecodeChoice:
        """The best lists of at most that many sizes (``num_contexts`` without max_model_len)."""
        contexts = (int(self._contexts_U[-1]),)
        best: DecodeChoice | None = None
        while True:
            batches = self._best_batches(contexts, num_batches)
            contexts = self._best_contexts(batches, num_contexts + 1)
            choice = DecodeChoice(batches, contexts[:-1], self._work(self._demand_BU, batches, contexts))
            if best is not None and choice.work >= best.work:
                return best
            best = choice

    def work(self, batches: tuple[int, ...], contexts: tuple[int, ...]) -> float:
        """Work of serving the occupancy, in units of one row's linear work; ``contexts`` with the longest."""
        return self._work(self._steps_BU, batches, contexts)

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

    def _work(self, steps_BU: np.ndarray, batches: tuple[int, ...], contexts: tuple[int, ...]) -> float:
        row_U = 1.0 + self._attention * _fit(contexts, self._contexts_U)
        return float(_fit(batches, self._batches_B) @ steps_BU @ row_U)

    def _best_batches(self, contexts: tuple[int, ...], limit: int) -> tuple[int, ...]:
        row_U = 1.0 + self._attention * _fit(contexts, self._contexts_U)
        weights_B = self._demand_BU @ row_U
        return choose_sizes(self._batches_B[1:], weights_B[1:], limit)[-1]

    def _best_contexts(self, batches: tuple[int, ...], limit: int) -> tuple[int, ...]:
        weights_U = _fit(batches, self._batches_B) @ self._demand_BU
        # A bucket belongs where recorded steps end; between, powers of two do for the unseen.
        powers_U = (np.arange(len(weights_U)) & (np.arange(len(weights_U)) - 1)) == 0
        used_U = self._steps_BU.sum(axis=0) > 0
        kept = np.flatnonzero((used_U | powers_U)[:-1])[1:]
        kept = np.append(kept, len(weights_U) - 1)
        demand = np.bincount(np.searchsorted(kept, np.arange(len(weights_U))), weights_U, len(kept))
        return choose_sizes(self._contexts_U[kept], demand, limit)[-1]


def _fit(buckets: tuple[int, ...], sizes: np.ndarray) -> np.ndarray:
    """The smallest bucket for each size."""
    return np.asarray(buckets)[np.searchsorted(buckets, sizes)]


def _with_unseen(steps_BU: np.ndarray) -> np.ndarray:
    """The steps, less the unseen share, and that share: any batch at the recorded contexts, and the other way round."""
    batches_B, contexts_U = (steps_BU.sum(axis=axis, dtype=np.float64) for axis in (1, 0))
    unseen_BU = np.outer(_falling(len(batches_B)), contexts_U) + np.outer(batches_B, _falling(len(contexts_U)))
    return (1 - 2 * UNSEEN_SHARE) * steps_BU + UNSEEN_SHARE * unseen_BU


def _falling(count: int) -> np.ndarray:
    """[0, 1, 1/2, 1/3, …], normalised: as likely to be between 1 and 2 as between 100 and 200."""
    likely = np.zeros(count)
    likely[1:] = 1.0 / np.arange(1, count)
    return likely / likely.sum()
