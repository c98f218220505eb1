"""Who stores a program, when hosts that share no lock have made it at the same time.

A writer claims the program before it brings the first byte, the others wait and then find its record. So the bytes that
lose are never sent, and nothing has to be taken back that somebody may have begun to rely on.

A claim is renewed while its writer lives. One that is not is abandoned: at once when it is this host's (whoever asks
holds the host's lock of the program, so its writer is dead), else when a waiting host has seen it unchanged for a minute
of its own clock. Two that find it abandoned at the same
time may both go on; then the program's record decides who is first, and a gc takes the loser's blob.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from neuron_aot_runtime.contract.errors import NotFoundError, StoreError
from neuron_aot_runtime.store import parse_record
from neuron_aot_runtime.store.records import Lease, now

#: Seconds without renewal after which another host's claim is abandoned.
ALIVE = 60


@dataclass(frozen=True)
class _State:
    """``modified``: by the storage's clock, so only whether it changes says anything."""

    modified: float
    owner: str | None


@contextmanager
def claimed(backend, program_key: str, owner: str, *, poll: float = 0.5) -> Iterator[None]:
    """Wait until nobody else stores the program, and hold its claim. ``owner``: this host's identity.

    The caller holds this host's lock of the program.
    """
    path = f"leases/claim-{program_key}.json"
    claim = Lease(kind="claim", started_at=now(), programs=(program_key,), owner=owner).to_json()
    seen, since = None, time.monotonic()
    while not backend.create(path, claim):
        state = _state(backend, path)
        if state != seen:
            seen, since = state, time.monotonic()
        if state is not None and (state.owner == owner or time.monotonic() - since >= ALIVE):
            backend.delete(path)
        else:
            time.sleep(poll)
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(backend, path, claim, ended), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        backend.delete(path)


def _renew(backend, path: str, claim: bytes, ended: threading.Event) -> None:
    while not ended.wait(ALIVE / 4):
        try:
            backend.replace(path, claim)
        except StoreError:
            continue  # what the writer itself does meets the same, and says so


def _state(backend, path: str) -> _State | None:
    """What is seen of a claim; None when it has just ended."""
    try:
        modified = backend.stat(path).modified
        return _State(modified, parse_record(Lease, backend.read(path), where=f"{backend.location}/{path}").owner)
    except NotFoundError:
        return None
