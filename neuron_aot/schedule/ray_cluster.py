"""Compiles on the machines of a Ray cluster; each worker writes to the store itself.

Every machine needs neuron-aot, the same compiler, and the store under the same location (a mount, or a URL). Ray keeps
the books of memory: each task asks for what it is estimated to need. A task is a stream, its notes and then its value.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from neuron_aot_runtime.contract.errors import CompileError, NeuronAotError, TransientCompileError, UsageError

from .local import Finished, Noted, Started, Task
from .memory import HostMemory

#: Settings of this process that decide a program's key, so that workers read the same.
_FORWARDED = ("NEURON_CC_FLAGS",)


class RayExecutor:
    """See ``Executor``. Connects to the cluster that RAY_ADDRESS names, else the one on this machine, else starts one.

    Raises UsageError when Ray is not installed.
    """

    def __init__(self) -> None:
        try:
            import ray
        except ImportError as error:
            raise UsageError(
                "--executor ray needs the package ray",
                found=str(error),
                next_command="pip install 'neuron-aot[ray]', on every machine of the cluster; or leave --executor out",
            ) from error
        self._ray = ray
        if not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)

    def default_jobs(self) -> int:
        return max(int(self._ray.cluster_resources().get("CPU", 1)), 1)

    def memory(self) -> HostMemory:
        most = max(int(node["Resources"].get("memory", 0)) for node in self._ray.nodes() if node["Alive"]) >> 20
        return HostMemory(total=most, free=most)

    def run(self, tasks: Sequence[Task], needs: Sequence[int], jobs: int) -> Iterator[Started | Noted | Finished]:
        ray, most = self._ray, self.memory().total
        variables = {name: os.environ[name] for name in _FORWARDED if name in os.environ}
        remote = ray.remote(num_cpus=1, num_returns="streaming", max_retries=0, runtime_env={"env_vars": variables})(
            _stream
        )
        waiting = list(range(len(tasks)))[::-1]
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    index = waiting.pop()
                    # A forced program asks for a whole machine: more would wait forever.
                    stream = remote.options(memory=min(needs[index], most) << 20).remote(*tasks[index])
                    running[stream] = index
                    yield Started(index)
                ready, _ = ray.wait(list(running), num_returns=1, fetch_local=False)
                event = self._next(ready[0], running[ready[0]])
                if isinstance(event, Finished):
                    del running[ready[0]]
                yield event
        finally:
            for stream in running:
                ray.cancel(stream, force=True)

    def _next(self, stream, index: int) -> Noted | Finished:
        try:
            kind, content = self._ray.get(next(stream))
        except StopIteration:
            return Finished(index, error=TransientCompileError("a Ray worker ended without a result"))
        except self._ray.exceptions.RayTaskError as error:
            return Finished(index, error=CompileError(f"unexpected error in a Ray worker: {error.cause or error}"))
        except self._ray.exceptions.RayError as error:
            # The worker or its machine is gone, or Ray killed it for memory.
            lines = str(error).splitlines()
            return Finished(
                index,
                error=TransientCompileError(
                    f"a Ray worker was lost: {type(error).__name__}",
                    found=lines[0] if lines else None,
                    next_command="run the same command again: finished programs are kept",
                ),
            )
        return Noted(index, content) if kind == "note" else Finished(index, **{kind: content})


def _stream(function: Callable, arguments: tuple) -> Iterator[tuple[str, Any]]:
    """A task's notes, and last its value or error; the work is a thread's, for a stream gives only between two steps."""
    said: queue.Queue = queue.Queue()

    def work() -> None:
        try:
            said.put(("value", function(*arguments, lambda note: said.put(("note", note)))))
        except NeuronAotError as error:
            said.put(("error", error))
        except Exception as error:  # noqa: BLE001 (a bug must end the stream, not leave it waiting)
            said.put(("error", CompileError(f"unexpected {type(error).__name__}: {error}")))

    threading.Thread(target=work, daemon=True).start()
    kind = "note"
    while kind == "note":
        kind, content = said.get()
        yield kind, content
