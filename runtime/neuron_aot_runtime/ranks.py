"""The ranks of one engine: how their processes meet, compare what they are, and notice that one has died.

They meet in a directory of their host, where each writes small files, whole or not at all. No device takes part, so ranks
that do not belong together say so before a collective could wait for ever.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import __version__
from .contract.errors import ConfigError, DeviceError, IncompatibleArtifactError, NeuronAotError
from .store import Bundle

TIMEOUT = 120.0  # seconds that a rank waits for the others: a process may import for long on a busy host
LOOPBACK = "127.0.0.1"
_POLL = 0.02
_GRACE = 2.0  # seconds that a rank may take to end by itself when another has died


class RankGroup:
    """One rank's view of all of them. ``rank`` of ``world_size``; ``timeout`` in seconds, for each meeting."""

    def __init__(self, directory: Path, rank: int, world_size: int, *, timeout: float = TIMEOUT) -> None:
        self.rank, self.world_size, self.timeout = rank, world_size, timeout
        self._directory = directory
        self._watching: threading.Thread | None = None
        self._closed = threading.Event()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._processes: list[int] = self.gather("process", os.getpid())

    def gather(self, topic: str, value: Any) -> list[Any]:
        """What every rank brought under ``topic`` (JSON), by rank; returns when all have come.

        A topic is used once. Raises DeviceError naming the ranks that did not come in time.
        """
        path = self._file(topic, self.rank)
        part = path.with_name(f"{path.name}.part")  # this rank's own, beside those of the others
        part.write_text(json.dumps(value))
        part.rename(path)
        deadline = time.monotonic() + self.timeout
        while missing := [rank for rank in range(self.world_size) if not self._file(topic, rank).exists()]:
            if time.monotonic() > deadline:
                raise DeviceError(
                    f"{_spoken(missing)} of {self.world_size} did not come within {self.timeout:g} s, "
                    f"says rank {self.rank}",
                    next_command="look above for what ended them; --distributed-timeout-seconds allows more time",
                )
            time.sleep(_POLL)
        return [json.loads(self._file(topic, rank).read_text()) for rank in range(self.world_size)]

    def agree(self, facts: Mapping[str, str]) -> None:
        """Compare ``facts`` with the other ranks'. Raises IncompatibleArtifactError, on each of them, with every
        difference from rank 0."""
        first, *others = self.gather("facts", dict(facts))
        differences = [
            f"rank {rank}: {name}: wanted {first.get(name)} as rank 0, found {found.get(name)}"
            for rank, found in enumerate(others, start=1)
            for name in sorted(first.keys() | found.keys())
            if first.get(name) != found.get(name)
        ]
        if differences:
            raise IncompatibleArtifactError(
                "the ranks of this engine are not of one kind",
                details=differences,
                next_command="start all ranks from one installation and one bundle id (a ref may have moved meanwhile)",
            )

    def watch(self, tell: Callable[[str], None]) -> None:
        """From now on, when another rank dies: ``tell`` which, and end this process soon if it does not end itself.

        For a rank that waits in a collective cannot be told anything.
        """
        self._watching = threading.Thread(target=self._watch, args=(tell,), name="rank-watch", daemon=True)
        self._watching.start()

    def close(self) -> None:
        """Leave, in good order: the others will not take this rank's end for a death. The last one clears up."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._file("left", self.rank).touch()
            if all(self._file("left", rank).exists() for rank in range(self.world_size)):
                shutil.rmtree(self._directory, ignore_errors=True)

    def _watch(self, tell: Callable[[str], None]) -> None:
        waiting = select.poll()
        ranks: dict[int, int] = {}  # file descriptor of a process -> its rank
        dead = None
        for rank, process in enumerate(self._processes):
            if rank == self.rank:
                continue
            try:
                descriptor = os.pidfd_open(process)
            except ProcessLookupError:
                dead = rank
                break
            ranks[descriptor] = rank
            waiting.register(descriptor, select.POLLIN)
        while dead is None and ranks:
            for descriptor, _ in waiting.poll():
                rank = ranks.pop(descriptor)
                waiting.unregister(descriptor)
                os.close(descriptor)
                # A group that was cleared up has been left by all.
                if self._directory.exists() and not self._file("left", rank).exists():
                    dead = rank
        if dead is None or self._closed.is_set():
            return
        tell(f"rank {dead} (process {self._processes[dead]}) has died: rank {self.rank} ends as well")
        if not self._closed.wait(_GRACE):
            os._exit(DeviceError.exit_code)

    def _file(self, topic: str, rank: int) -> Path:
        return self._directory / f"{topic}.{rank}"


def meet(init_method: str, rank: int, world_size: int, *, timeout: float | None = None) -> RankGroup:
    """The group of the engine that ``init_method`` (vLLM's ``file://…``, one per engine) belongs to.

    Raises ConfigError for another kind, DeviceError when ranks are missing.
    """
    scheme, _, path = init_method.partition("://")
    if scheme != "file":
        raise ConfigError(
            "the ranks of an engine meet in a directory of one host",
            wanted="--distributed-executor-backend mp, on one node",
            found=init_method,
        )
    return RankGroup(Path(f"{path}.ranks"), rank, world_size, timeout=timeout or TIMEOUT)


def free_address() -> str:
    """``host:port`` on the loopback interface, free now: another process may take it before it is used."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return f"{LOOPBACK}:{probe.getsockname()[1]}"


def kind_of_rank(bundle: Bundle) -> dict[str, str]:
    """What every rank of an engine must have in common: its bundle, its artifacts by their bytes, this package.

    An artifact that cannot be read is described rather than raised, so that every rank says whose it is.
    """
    facts = {"manifest": bundle.manifest.bundle_id, "neuron-aot-runtime": __version__}
    for program in bundle.manifest.programs:
        try:
            bundle.check_artifact(program)
            facts[f"artifact of {program.name}"] = program.artifact.digest
        except NeuronAotError as error:
            facts[f"artifact of {program.name}"] = error.found or error.message
    return facts


def _spoken(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
