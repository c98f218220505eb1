"""How much of the CPU others took while something was measured, so that a disturbed round can be told from a quiet one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TICK = os.sysconf("SC_CLK_TCK")
#: a round in which others took more than this share of all cores is measured again
QUIET = 0.05


class Watch:
    """Starts on creation; ``others()`` is the share of all cores that went to neither us nor ``sessions``.

    ``sessions``: ids of the measured processes' sessions; each was started in one of its own.
    """

    def __init__(self, *sessions: int) -> None:
        self._sessions = {os.getsid(0), *sessions}
        self._start = time.perf_counter()
        self._busy, self._own = _busy(), self._own_seconds()

    def others(self) -> float:
        wall = time.perf_counter() - self._start
        others = (_busy() - self._busy) - (self._own_seconds() - self._own)
        return max(0.0, others / (wall * (os.cpu_count() or 1)))

    def _own_seconds(self) -> float:
        ticks = 0
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                # The command in parentheses may hold spaces; session is the 4th field after it.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) in self._sessions:
                ticks += sum(map(int, fields[11:15]))  # user, system, and the same of children that have ended
        return ticks / _TICK


def _busy() -> float:
    """Seconds of CPU that all processes (and the hypervisor's other guests) have taken."""
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
    return (user + nice + system + irq + softirq + steal) / _TICK


def quiet_rounds(
    rounds: int, measure: Callable[[], tuple[Any, float]], say: Callable[[str], None]
) -> tuple[list[Any], float]:
    """Repeat ``measure`` -> (result, others' share) until ``rounds`` were quiet, at most three times as often.

    Returns the quiet results (all of them when there was no quiet one) and the largest share among those.
    """
    taken: list[tuple[float, Any]] = []
    for _ in range(3 * rounds):
        result, share = measure()
        taken.append((share, result))
        if share > QUIET:
            say(f"  others took {share:.0%} of the CPU: again")
        if sum(share <= QUIET for share, _ in taken) == rounds:
            break
    kept = [item for item in taken if item[0] <= QUIET] or taken
    return [result for _, result in kept], max(share for share, _ in kept)
