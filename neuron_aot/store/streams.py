"""Many requests, transfers or digests at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

Item, Result = TypeVar("Item"), TypeVar("Result")

#: At the same time. Hashing, files and S3's client all work without Python's lock.
STREAMS = 8


def parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """``work`` on every item, in threads; results in the order of the items. The first error ends it, and is raised."""
    with ThreadPoolExecutor(STREAMS) as pool:
        waiting = [pool.submit(work, item) for item in items]
        try:
            for done in as_completed(waiting):
                done.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        return [future.result() for future in waiting]
