"""Where compiles run: one contract, this machine's processes or a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from .local import Finished, Noted, Started, Task, default_jobs, run_tasks
from .memory import Admission, HostMemory, host_memory

EXECUTORS = ("local", "ray")


class Executor(Protocol):
    """Runs tasks in other processes, and never more at once than fit into their hosts' memory."""

    def default_jobs(self) -> int:
        """How many tasks run at once unless the user says otherwise."""

    def memory(self) -> HostMemory:
        """Of the largest host, in MB: what a single task may take."""

    def run(self, tasks: Sequence[Task], needs: Sequence[int], jobs: int) -> Iterator[Started | Noted | Finished]:
        """See ``run_tasks``. ``needs``: MB of each task. A lost worker is a TransientCompileError of its task."""


class LocalExecutor:
    """Worker processes on this machine."""

    def default_jobs(self) -> int:
        return default_jobs()

    def memory(self) -> HostMemory:
        return host_memory()

    def run(self, tasks: Sequence[Task], needs: Sequence[int], jobs: int) -> Iterator[Started | Noted | Finished]:
        return run_tasks(tasks, jobs=jobs, admission=Admission(needs, host_memory().free))


def open_executor(name: str) -> Executor:
    """The executor of that name, one of ``EXECUTORS``. Raises UsageError when its package is not installed."""
    if name == "ray":
        from .ray_cluster import RayExecutor

        return RayExecutor()
    return LocalExecutor()
