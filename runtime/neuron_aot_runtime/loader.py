"""Programs become ready one by one: the few that a first request needs at once, the others while the server answers.

A program costs time twice: loading it, and its first execution (on cpu XLA builds its kernels' plans then: 0.8 s for
a 30-layer program where later ones take 0.03). A bundle has dozens. So the start loads two, and a thread of the
loader's own does the rest: it loads, and executes each program once on padding while the server is idle. A program
that is wanted earlier is loaded there and then; what a request meets in the worst case is one load or one warm-up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .contract.manifest import Manifest, Program

_IDLE = 0.05  # seconds without an execution after which a warm-up may begin


def first_needed(manifest: Manifest) -> list[Program]:
    """The bundle's programs, those of small buckets first: a server's first requests are few and short."""
    return sorted(manifest.programs, key=lambda program: (program.bucket.size, program.bucket.context))


class ProgramLoader:
    """Loads and warms each of ``programs`` once.

    ``load`` is never called by two threads at the same time, nor are ``warm`` and the body of :meth:`use`; but a
    program may be loaded while another one is executed.
    """

    def __init__(
        self, programs: Sequence[Program], *, load: Callable[[Program], None], warm: Callable[[Program], None]
    ) -> None:
        self._programs = {program.name: program for program in programs}
        self._load, self._warm = load, warm
        self._loaded: dict[str, None] = {}  # in the order of loading
        self._executed: set[str] = set()
        self._changed = threading.Condition()  # guards what follows
        self._loading = False
        self._urgent = 0
        self._failure: BaseException | None = None
        self._device = threading.Lock()  # held by whoever executes
        self._last_use = float("-inf")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def require(self, name: str) -> None:
        """Return when the program is loaded.

        Raises what loading it raised, and what went wrong in the background, with whichever program that was.
        """
        if name in self._loaded and self._failure is None:
            return
        with self._changed:
            self._urgent += 1
            try:
                self._changed.wait_for(lambda: not self._loading)
                if self._failure is not None:
                    raise self._failure
                if name not in self._loaded:
                    self._load(self._programs[name])
                    self._loaded[name] = None
            finally:
                self._urgent -= 1
                self._changed.notify_all()

    @contextmanager
    def use(self, name: str) -> Iterator[None]:
        """The program is loaded, and nothing else is executed in the body. Raises as :meth:`require`."""
        self.require(name)
        with self._device:
            try:
                yield
            finally:
                self._executed.add(name)
                self._last_use = time.monotonic()

    def finish(self) -> None:
        """Load and warm everything that is left, now, in the order of ``programs``. Raises as they do."""
        for program in self._programs.values():
            self.require(program.name)
            self._warm_once(program)

    def start(self, done: Callable[[], None] = lambda: None) -> None:
        """Do the same in the background, then call ``done``."""
        self._thread = threading.Thread(target=self._run, args=(done,), name="program-loader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more; returns when nothing is running."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, done: Callable[[], None]) -> None:
        try:
            # While the server's frontend is still busy with itself, the first request's programs get warm.
            for name in list(self._loaded):
                self._warm_when_idle(self._programs[name])
            for program in self._programs.values():
                self._load_unless_urgent(program)
            for program in self._programs.values():
                self._warm_when_idle(program)
        except BaseException as error:  # noqa: BLE001 whoever executes next raises it: the engine must not serve on
            with self._changed:
                self._failure = error
                self._loading = False
                self._changed.notify_all()
            return
        if not self._stop.is_set():
            done()

    def _load_unless_urgent(self, program: Program) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._urgent)
            if self._stop.is_set() or program.name in self._loaded:
                return
            self._loading = True
        self._load(program)
        with self._changed:
            self._loaded[program.name] = None
            self._loading = False
            self._changed.notify_all()

    def _warm_when_idle(self, program: Program) -> None:
        while time.monotonic() - self._last_use < _IDLE and program.name not in self._executed:
            if self._stop.wait(_IDLE):
                return
        if not self._stop.is_set():
            self._warm_once(program)

    def _warm_once(self, program: Program) -> None:
        with self._device:
            if program.name not in self._executed:
                self._warm(program)
                self._executed.add(program.name)
