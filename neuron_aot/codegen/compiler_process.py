"""Running a compiler: its own process group and folder, a time limit, peak memory, and an end with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Becomes the compiler after asking to end with its parent: a killed worker must not leave an hour's compile behind.
#: A program of its own, because a worker that has lowered has JAX's threads and must not fork.
_LAUNCH = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
_POLL_SECONDS = 0.05
_SAMPLE_SECONDS = 0.5
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Ended:
    """``code``: exit code, negative for a signal; ``peak_mb``: largest resident memory of its processes together."""

    code: int
    peak_mb: int
    seconds: float
    timed_out: bool


def run_compiler(command: Sequence[str], *, folder: Path, output: Path, timeout: float | None) -> Ended:
    """Run ``command`` in ``folder``; stdout and stderr go to ``output``. Raises OSError when it cannot start."""
    started = time.monotonic()
    with open(output, "wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _LAUNCH, *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    peak = sampled = 0
    timed_out = False
    try:
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            now = time.monotonic() - started
            if pid:
                break
            if timeout is not None and now > timeout and not timed_out:
                timed_out = True
                _kill(process.pid)
            if now >= sampled:
                peak, sampled = max(peak, _group_memory(process.pid)), now + _SAMPLE_SECONDS
            time.sleep(_POLL_SECONDS)
    except BaseException:
        _kill(process.pid)
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    _kill(process.pid)  # what it started and left behind
    peak_mb = max(peak >> 20, usage.ru_maxrss >> 10)
    return Ended(code=process.returncode, peak_mb=peak_mb, seconds=now, timed_out=timed_out)


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _group_memory(group: int) -> int:
    """Resident bytes of all processes of the group."""
    total = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended
            if int(fields[2]) == group:
                total += int(fields[21]) * _PAGE
    return total
