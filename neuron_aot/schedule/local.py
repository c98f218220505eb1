"""A pool of worker processes on this machine that outlives the death of any of its workers.

The standard pools lose every task when one worker dies, and compilers do get killed for memory. Here a dead worker
costs its own task and is replaced. Workers are spawned (nothing is inherited but the task), they keep their heavy
imports between tasks, and they end with their parent.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from neuron_aot_runtime.contract.errors import CompileError, NeuronAotError, TransientCompileError

from .memory import Admission

_TERMINATE_GRACE_SECONDS = 5
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Started:
    """A worker took task ``index``."""

    index: int


@dataclass(frozen=True)
class Noted:
    """Task ``index`` said something on its way."""

    index: int
    note: Any


@dataclass(frozen=True)
class Finished:
    """Task ``index`` ended: ``error`` is None, or says why there is no ``value``."""

    index: int
    value: Any = None
    error: NeuronAotError | None = None


Task = tuple[Callable, tuple]


def default_jobs() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))


def run_tasks(
    tasks: Sequence[Task], *, jobs: int, admission: Admission | None = None
) -> Iterator[Started | Noted | Finished]:
    """Run every task in up to ``jobs`` processes, in order, and yield what happens as it happens.

    With ``admission``, a task waits until it fits into memory; smaller ones behind it go first.

    A task is (function, arguments), picklable; it is called as ``function(*arguments, note)`` where ``note`` sends a
    Noted. Every task gets a Finished, whatever happens to others. Closing the iterator (or an interrupt) ends all
    workers.
    """
    waiting = dict(enumerate(tasks))
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.task is not None for worker in workers):
            idle = [worker for worker in workers if worker.task is None]
            while waiting and (idle or len(workers) < jobs):
                running = [worker.task for worker in workers if worker.task is not None]
                fitting = (item for item in waiting if admission is None or admission.admits(item, running))
                if (index := next(fitting, None)) is None:
                    break
                if not idle:
                    idle.append(_Worker())
                    workers.append(idle[0])
                idle.pop().start(index, waiting.pop(index))
                yield Started(index)
            for worker in _readable(workers):
                event = worker.receive()
                if not worker.alive:
                    workers.remove(worker)
                if event is not None:
                    yield event
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
        # Ctrl-C reaches the whole process group; only this process decides what it means. Blocked is inherited.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that the end of the worker is the end of the pipe
        self.task: int | None = None
        self.alive = True

    def start(self, index: int, task: Task) -> None:
        self.task = index
        try:
            self.connection.send(task)
        except BrokenPipeError:
            pass  # it died while idle; receive() reports it

    def receive(self) -> Noted | Finished | None:
        """What the worker sent, or its death; None when it died without a task."""
        try:
            kind, content = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.alive = False
            self.process.join()
            self.connection.close()
            return None if self.task is None else Finished(self._release(), error=self._death())
        if kind == "note":
            return Noted(self.task, content)
        return Finished(self._release(), **{kind: content})

    def end(self) -> None:
        """Stop the worker now; a compile in progress leaves nothing behind but scratch files."""
        self.connection.close()
        if self.task is not None:
            self.process.terminate()
        self.process.join(_TERMINATE_GRACE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _release(self) -> int:
        index, self.task = self.task, None
        return index

    def _death(self) -> TransientCompileError:
        code = self.process.exitcode
        again = "run the same command again: finished programs are kept"
        if code is not None and code < 0:
            memory = "; when it was for memory, with fewer --jobs" if -code == signal.SIGKILL else ""
            return TransientCompileError(
                f"the compile process was killed by {signal.Signals(-code).name}", next_command=again + memory
            )
        return TransientCompileError(
            f"the compile process ended with exit code {code} and no result", next_command=again
        )


def _readable(workers: list[_Worker]) -> list[_Worker]:
    ready = set(wait([worker.connection for worker in workers]))
    return [worker for worker in workers if worker.connection in ready]


def _serve(connection: Connection, parent: int) -> None:
    """A worker's life: take tasks until the parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # a killed parent must not leave an hour's compile
    if os.getppid() != parent:
        return
    os.dup2(2, 1)  # stdout is the command's data; what libraries print is talk
    while True:
        try:
            function, arguments = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        except Exception as error:  # noqa: BLE001 (unpickling a task runs foreign code)
            reply = ("error", _unexpected(error))
        else:
            reply = _run(function, arguments, lambda note: connection.send(("note", note)))
        try:
            connection.send(reply)
        except (BrokenPipeError, ConnectionResetError):
            return


def _run(function: Callable, arguments: tuple, note: Callable) -> tuple[str, Any]:
    try:
        return "value", function(*arguments, note)
    except NeuronAotError as error:
        return "error", error
    except Exception as error:  # noqa: BLE001 (a bug must not take the other tasks along)
        return "error", _unexpected(error)


def _unexpected(error: Exception) -> CompileError:
    """A bug of ours or of a library: with its traceback, because it happened in another process."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return CompileError(f"unexpected {type(error).__name__}: {error}", details=lines)
