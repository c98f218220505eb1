"""Buckets: which static shapes exist, what they are called, and which one serves a step.

The same functions decide what is compiled, what is checked at start and what runs, so they cannot disagree.

A prefill program takes one sequence's next ``size`` tokens and a block table for ``context`` tokens, prior and new
together; it writes the new K/V first and then attends over the table. So the program with context == size serves
fresh prompts (and short continuations), and those with more context serve segmented prefill and prefix cache hits.
A decode program takes one token for each of ``size`` sequences, each with at most ``context`` tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from .manifest import Bucket


def program_name(phase: str, bucket: Bucket) -> str:
    """``prefill_s128_c512`` or ``decode_b4_c512``; the name users see in metrics and messages."""
    return (
        f"prefill_s{bucket.size}_c{bucket.context}"
        if phase == "prefill"
        else f"decode_b{bucket.size}_c{bucket.context}"
    )


def bucket_distance(one: Bucket, other: Bucket) -> tuple[float, int, int]:
    """How far ``one`` is from ``other``: by the ratios of sizes and contexts; of two as far, the smaller is nearer."""
    ratio = abs(math.log(one.size / other.size)) + abs(math.log(one.context / other.context))
    return round(ratio, 9), one.size, one.context


def powers_of_two(first: int, last: int) -> tuple[int, ...]:
    """first, 2*first, … below ``last``, then ``last`` itself."""
    sizes = []
    size = first
    while size < last:
        sizes.append(size)
        size *= 2
    return (*sizes, last)


def prefill_grid(
    token_buckets: Sequence[int], contexts: Sequence[int], max_model_len: int, block_size: int
) -> list[Bucket]:
    """Every reachable prefill bucket: each token size with its own (rounded up to a block) and every larger context.

    ``token_buckets`` ascending; ``contexts`` ascending, the last one being ``max_model_len``. A token size is
    unreachable, and dropped, when a smaller one already holds the longest sequence.
    """
    grid = []
    rounded = {round_up(context, block_size) for context in contexts}
    for index, tokens in enumerate(token_buckets):
        if index and token_buckets[index - 1] >= max_model_len:
            break
        own = round_up(tokens, block_size)
        grid += [Bucket(size=tokens, context=context) for context in sorted({own} | {c for c in rounded if c > own})]
    return grid


def decode_grid(seqs_buckets: Sequence[int], contexts: Sequence[int], block_size: int) -> list[Bucket]:
    """Every decode bucket: each batch size with each context (rounded up to a block)."""
    rounded = sorted({round_up(context, block_size) for context in contexts})
    return [Bucket(size=size, context=context) for size in seqs_buckets for context in rounded]


def smallest_fitting(buckets: Iterable[Bucket], *, size: int, context: int) -> Bucket | None:
    """The cheapest bucket that holds ``size`` (tokens or sequences) and ``context`` tokens, or None.

    The smallest size wins first: compute grows with it for every layer, context only costs in attention.
    """
    fitting = [bucket for bucket in buckets if bucket.size >= size and bucket.context >= context]
    return min(fitting, key=lambda bucket: (bucket.size, bucket.context), default=None)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
