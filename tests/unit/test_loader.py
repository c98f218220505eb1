import threading

import pytest
from neuron_aot_runtime.contract.manifest import Artifact, Bucket, Program
from neuron_aot_runtime.loader import ProgramLoader


class Machine:
    """Records loads and warm-ups; a program in ``slow`` is loaded only when its event is set."""

    def __init__(self, *names, slow=(), broken=(), cold=()):
        artifact = Artifact(format="none", digest="sha256:" + "0" * 64, size=0)
        self.programs = [
            Program(name=name, phase="decode", bucket=Bucket(size=1, context=1), program_key="0" * 64,
                    artifact=artifact, inputs=(), outputs=())
            for name in names
        ]  # fmt: skip
        self.loaded, self.warmed, self.broken, self.cold = [], [], broken, cold
        self.slow = {name: threading.Event() for name in slow}
        self.entered = {name: threading.Event() for name in slow}
        self.loading, self.executing = threading.Lock(), threading.Lock()
        self.loader = ProgramLoader(self.programs, load=self.load, warm=self.warm)

    def load(self, program):
        assert self.loading.acquire(blocking=False), "two loads at the same time"
        try:
            if program.name in self.slow:
                self.entered[program.name].set()
                assert self.slow[program.name].wait(10)
            if program.name in self.broken:
                raise OSError(program.name)
            self.loaded.append(program.name)
        finally:
            self.loading.release()

    def warm(self, program):
        with self.execution():
            assert program.name in self.loaded
            if program.name in self.cold:
                raise OSError(program.name)
            self.warmed.append(program.name)

    def execution(self):
        assert not self.executing.locked(), "two executions at the same time"
        return self.executing

    def use(self, name):
        with self.loader.use(name), self.execution():
            assert name in self.loaded


def finished(machine):
    done = threading.Event()
    machine.loader.start(done.set)
    assert done.wait(10)
    machine.loader.stop()


def test_each_program_is_loaded_and_warmed_once_the_first_ones_first():
    machine = Machine("a", "b", "c", "d")
    machine.loader.require("c")
    machine.loader.require("c")
    finished(machine)
    assert machine.loaded == ["c", "a", "b", "d"]
    assert machine.warmed == ["c", "a", "b", "d"]


def test_what_was_executed_needs_no_warming():
    machine = Machine("a", "b")
    machine.use("b")
    finished(machine)
    assert machine.warmed == ["a"]


def test_everything_at_once_keeps_the_order():
    machine = Machine("a", "b", "c")
    machine.loader.require("c")
    machine.loader.finish()
    assert machine.loaded == ["c", "a", "b"]
    assert machine.warmed == ["a", "b", "c"]


def test_a_program_that_is_wanted_goes_before_those_that_wait():
    machine = Machine("a", "b", "c", slow=("a",))
    machine.loader.start()
    assert machine.entered["a"].wait(10)
    waiter = threading.Thread(target=machine.use, args=("c",))
    waiter.start()
    while not machine.loader._urgent:
        pass
    machine.slow["a"].set()
    waiter.join(10)
    assert machine.loaded[:2] == ["a", "c"]
    machine.loader.stop()


def test_a_busy_device_is_not_warmed():
    machine, done = Machine("a", "b"), threading.Event()
    machine.loader.require("a")
    with machine.loader.use("a"):
        machine.loader.start(done.set)
        machine.loader.require("b")  # loading goes on meanwhile
        assert machine.warmed == []
    assert done.wait(10)
    assert machine.warmed == ["b"]


@pytest.mark.parametrize("fault", ["broken", "cold"])
def test_a_failure_in_the_background_reaches_whoever_executes_next(fault):
    machine, done = Machine("a", "b", "c", **{fault: ("b",)}), threading.Event()
    machine.use("a")
    machine.loader.start(done.set)
    machine.loader._thread.join(10)
    assert not done.is_set()
    for name in ("a", "b", "c"):
        with pytest.raises(OSError, match="b"):
            machine.use(name)
    machine.loader.stop()


def test_a_failure_in_the_foreground_is_the_callers():
    with pytest.raises(OSError, match="a"):
        Machine("a", broken=("a",)).use("a")


def test_stop_ends_the_background():
    machine, done = Machine("a", "b", slow=("a",)), threading.Event()
    machine.loader.start(done.set)
    assert machine.entered["a"].wait(10)
    machine.loader._stop.set()
    machine.slow["a"].set()
    machine.loader.stop()
    assert machine.loaded == ["a"]
    assert not done.is_set()
