"""The host's memory, as this process may use it, and how many tasks fit into it at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Above this a cgroup's limit means "none".
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class HostMemory:
    """In MB: ``total`` that processes of this cgroup may ever have, ``free`` of it now (caches count as free)."""

    total: int
    free: int


@dataclass(frozen=True)
class Admission:
    """Which tasks may run at once. ``needs``: MB of each task, by index; ``capacity``: MB for all together."""

    needs: Sequence[int]
    capacity: int

    def admits(self, index: int, running: Collection[int]) -> bool:
        """Whether the task fits beside those that run. One alone always does: waiting would not help it."""
        return not running or sum(self.needs[other] for other in running) + self.needs[index] <= self.capacity


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Physical memory, less what the limits of this process's cgroups (version 1 or 2) and their parents leave out."""
    known = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
    total, free = (int(known[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    for limit, used in _cgroup_limits(root):
        total, free = min(total, limit), min(free, max(limit - used, 0))
    return HostMemory(total=total >> 20, free=free >> 20)


def _cgroup_limits(root: Path):
    """(limit, used) in bytes of every cgroup above this process that has a limit; reclaimable caches are not used."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inside = mount / path.lstrip("/")  # in a container it may not be there: its mount's root then is the cgroup
        for folder in (inside, *inside.parents):
            limit = _read(folder / names[0]).strip()
            if limit.isdigit() and int(limit) < _NO_LIMIT:
                stat = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
                yield int(limit), int(_read(folder / names[1]) or 0) - int(stat.get(names[2], 0))
            if folder == mount:
                break


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
