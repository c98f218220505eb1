"""Programs become ready one by one: the few that a first request needs at once, the others while the server answers.

Loading a program costs a quarter of a second on cpu, and a bundle has dozens. A program that is asked for before its
turn is loaded there and then, so the worst that a request meets in the first seconds is one load.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from .contract.manifest import Manifest, Program


def first_needed(manifest: Manifest) -> list[Program]:
    """The bundle's programs, those of small buckets first: a server's first requests are few and short."""
    return sorted(manifest.programs, key=lambda program: (program.bucket.size, program.bucket.context))


class ProgramLoader:
    """Loads each of ``programs`` once. ``load`` is never called by two threads at the same time.

    It may run in a thread of the loader's own while the device executes other programs.
    """

    def __init__(self, programs: Iterable[Program], load: Callable[[Program], None]) -> None:
        self._load = load
        self._waiting = {program.name: program for program in programs}
        self._ready: set[str] = set()
        self._changed = threading.Condition()
        self._busy = False
        self._urgent = 0
        self._failure: BaseException | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def require(self, name: str) -> None:
        """Return when the program is ready. Raises what loading it raised, or any other program in the background."""
        if name in self._ready and self._failure is None:
            return
        with self._changed:
            self._urgent += 1
            try:
                self._changed.wait_for(lambda: not self._busy)
                if self._failure is not None:
                    raise self._failure
                if (program := self._waiting.pop(name, None)) is not None:
                    self._load(program)
                    self._ready.add(name)
            finally:
                self._urgent -= 1
                self._changed.notify_all()

    def start(self, done: Callable[[], None] = lambda: None) -> None:
        """Load what is left in the background, then call ``done``."""
        self._thread = threading.Thread(target=self._run, args=(done,), name="program-loader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Load nothing more; returns when no load is running."""
        self._stopped = True
        if self._thread is not None:
            self._thread.join()

    def _run(self, done: Callable[[], None]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._urgent)
                if self._stopped or not self._waiting:
                    break
                program = self._waiting.pop(next(iter(self._waiting)))
                self._busy = True
            failure = None
            try:
                self._load(program)
            except BaseException as error:  # whoever asks next raises it: the engine must not serve on
                failure = error
            with self._changed:
                self._busy = False
                self._failure = failure
                self._ready.add(program.name)
                self._changed.notify_all()
            if failure is not None:
                return
        if not self._stopped:
            done()
