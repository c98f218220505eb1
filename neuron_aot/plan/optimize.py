"""Choosing bucket sizes: exact dynamic programming over one dimension.

Candidates c_0 < c_1 < … stand for the demand up to each of them. ``cost_ji[j, i]`` is what the demand of candidates j to
i costs when bucket c_i serves it. The least cost of covering candidates 0 to i with k buckets follows from that with
k - 1: O(k n^2) for n candidates, no heuristics. Ties go to the smaller index, so the result is a function of its input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from neuron_aot_runtime.contract.buckets import round_up

#: Prefill bucket sizes are multiples of it (or of the KV block, when that is smaller).
TOKEN_STEP = 16
#: Prompt-token padding may exceed the least possible by this share of the prompt tokens, to save attention work.
TOKEN_SLACK = 0.005

_MAX_CANDIDATES = 1024
_BISECTIONS = 12


@dataclass(frozen=True, eq=False)
class Pieces:
    """What prefill programs are asked for, one entry a kind of piece.

    ``tokens_P`` new tokens, ``contexts_P`` tokens with the prior ones, ``counts_P`` how often.
    """

    tokens_P: np.ndarray
    contexts_P: np.ndarray
    counts_P: np.ndarray


def prompt_pieces(prompts_R: np.ndarray, max_tokens: int) -> Pieces:
    """The pieces that prompts are prefilled in: segments of ``max_tokens``, then the rest."""
    lengths_L, counts_L = np.unique(prompts_R, return_counts=True)
    pieces: dict[tuple[int, int], int] = {}
    for length, count in zip(lengths_L.tolist(), counts_L.tolist(), strict=True):
        for start in range(0, length, max_tokens):
            tokens = min(max_tokens, length - start)
            pieces[tokens, start + tokens] = pieces.get((tokens, start + tokens), 0) + count
    ordered = np.array([(*piece, count) for piece, count in sorted(pieces.items())], np.int64)
    return Pieces(*ordered.T)


def piece_contexts(pieces: Pieces, size, contexts_C: np.ndarray, block_size: int) -> np.ndarray:
    """The context of the program of ``size`` tokens (one number, or one a piece) that serves each piece."""
    own = -(-np.asarray(size) // block_size) * block_size
    larger_P = contexts_C[np.minimum(np.searchsorted(contexts_C, pieces.contexts_P), len(contexts_C) - 1)]
    return np.where(pieces.contexts_P <= own, own, np.maximum(larger_P, own))


def choose_prefill(
    pieces: Pieces, max_tokens: int, limit: int, *, attention: float, contexts_C: np.ndarray, block_size: int
) -> list[tuple[int, ...]]:
    """The best prefill token buckets for every count from 1 to ``limit``; the largest is always ``max_tokens``.

    Least work (``1 + attention * context`` a token) among the choices on the convex hull of work and tokens that pad
    at most TOKEN_SLACK more prompt tokens than the least possible. ``contexts_C``: ascending, as prefill_contexts().
    """
    sizes_C = _prefill_candidates(pieces.tokens_P, max_tokens, min(TOKEN_STEP, block_size))
    owner_P = np.searchsorted(sizes_C, pieces.tokens_P)
    n = len(sizes_C)
    tokens_ji, work_ji = (np.empty((n, n)) for _ in range(2))
    for i, size in enumerate(sizes_C.tolist()):
        row_P = size * (1.0 + attention * piece_contexts(pieces, size, contexts_C, block_size))
        work_ji[:, i] = _suffix(np.bincount(owner_P, pieces.counts_P * row_P, n), i)
        tokens_ji[:, i] = _suffix(np.bincount(owner_P, pieces.counts_P * float(size), n), i)
    total = float((pieces.counts_P * pieces.tokens_P).sum())
    by_tokens, by_work = best_covers(tokens_ji, limit), best_covers(work_ji, limit)
    scale = _cost(tokens_ji, by_tokens[0]) / _cost(work_ji, by_work[0])
    chosen = []
    for k, (fewest, least) in enumerate(zip(by_tokens, by_work, strict=True)):
        allowed = _cost(tokens_ji, fewest) + TOKEN_SLACK * total
        cover = least if _cost(tokens_ji, least) <= allowed else fewest
        low, high = (0.0, 0.0) if cover is least else (0.0, 1.0)
        for _ in range(_BISECTIONS if high else 0):
            middle = (low + high) / 2
            tried = best_covers(middle * tokens_ji + (1 - middle) * scale * work_ji, k + 1)[-1]
            if _cost(tokens_ji, tried) <= allowed:
                high, cover = middle, tried
            else:
                low = middle
        chosen.append(tuple(sizes_C[list(cover)].tolist()))
    return chosen


def _prefill_candidates(tokens_P: np.ndarray, max_tokens: int, step: int) -> np.ndarray:
    """What pieces need, in multiples of ``step``; where those are too many, of 1/64 of the power of two below them."""

    def rounded(step_P) -> np.ndarray:
        return np.unique(np.append(np.minimum(-(-tokens_P // step_P) * step_P, max_tokens), max_tokens))

    sizes_C = rounded(step)
    if len(sizes_C) <= _MAX_CANDIDATES:
        return sizes_C
    return rounded(np.maximum(step, (1 << np.log2(tokens_P).astype(np.int64)) // 64))


def choose_sizes(sizes_C: np.ndarray, weights_C: np.ndarray, limit: int) -> list[tuple[int, ...]]:
    """The best sizes for every count from 1 to ``limit`` when a bucket costs its size for each unit of demand.

    ``sizes_C`` ascending candidates, the last always chosen; ``weights_C`` the demand up to each.
    """
    n = len(sizes_C)
    cost_ji = np.stack([_suffix(weights_C, i) * float(size) for i, size in enumerate(sizes_C)], axis=1)
    return [tuple(np.asarray(sizes_C)[list(cover)].tolist()) for cover in best_covers(cost_ji, min(limit, n))]


def best_covers(cost_ji: np.ndarray, limit: int) -> list[tuple[int, ...]]:
    """For each count k from 1 to ``limit``, the indices of the k candidates of least cost; the last is always one.

    With fewer candidates than k, all of them. Entries with j > i are not read.
    """
    n = len(cost_ji)
    triangle_ji = np.where(np.tri(n, dtype=bool).T, cost_ji, np.inf)
    best_i = triangle_ji[0]
    previous: list[np.ndarray] = []
    covers = [(n - 1,)]
    for _ in range(1, min(limit, n)):
        reach_ji = triangle_ji + np.append(np.inf, best_i[:-1])[:, None]
        previous.append(reach_ji.argmin(axis=0))
        best_i = reach_ji.min(axis=0)
        cover = [n - 1]
        for start_i in reversed(previous):
            cover.append(int(start_i[cover[-1]]) - 1)
        covers.append(tuple(cover[::-1]))
    return covers + [covers[-1]] * (limit - len(covers))


def token_padding(pieces: Pieces, buckets: tuple[int, ...]) -> float:
    """Padding tokens of ``buckets`` as a share of the prompt tokens."""
    sizes = np.asarray(buckets)
    padded_P = sizes[np.searchsorted(sizes, pieces.tokens_P)] - pieces.tokens_P
    return float((pieces.counts_P * padded_P).sum() / (pieces.counts_P * pieces.tokens_P).sum())


def prefill_work(
    pieces: Pieces, buckets: tuple[int, ...], *, attention: float, contexts_C: np.ndarray, block_size: int
) -> float:
    """Work of ``buckets``, in units of one token's linear work."""
    sizes = np.asarray(buckets)
    size_P = sizes[np.searchsorted(sizes, pieces.tokens_P)]
    context_P = piece_contexts(pieces, size_P, contexts_C, block_size)
    return float((pieces.counts_P * size_P * (1.0 + attention * context_P)).sum())


def rounded_contexts(contexts: tuple[int, ...], block_size: int) -> np.ndarray:
    """Contexts as programs have them: whole blocks."""
    return np.array(sorted({round_up(context, block_size) for context in contexts}), np.int64)


def _suffix(values_C: np.ndarray, last: int) -> np.ndarray:
    """[j]: the sum of ``values_C[j : last + 1]``; zero behind ``last``."""
    sums = np.zeros(len(values_C))
    sums[: last + 1] = np.cumsum(values_C[last::-1])[::-1]
    return sums


def _cost(cost_ji: np.ndarray, cover: tuple[int, ...]) -> float:
    firsts = [0, *(index + 1 for index in cover[:-1])]
    return float(sum(cost_ji[first, last] for first, last in zip(firsts, cover, strict=True)))
