import threading

import pytest
from neuron_aot_runtime.contract.manifest import Artifact, Bucket, Program
from neuron_aot_runtime.loader import ProgramLoader


def programs(*names):
    artifact = Artifact(format="none", digest="sha256:" + "0" * 64, size=0)
    return [
        Program(name=name, phase="decode", bucket=Bucket(size=1, context=1), program_key="0" * 64, artifact=artifact,
                inputs=(), outputs=())
        for name in names
    ]  # fmt: skip


class Machine:
    """Records what is loaded; a program in ``slow`` waits for its event."""

    def __init__(self, slow=(), broken=()):
        self.loaded, self.broken = [], broken
        self.slow = {name: threading.Event() for name in slow}
        self.entered = {name: threading.Event() for name in slow}
        self.inside = threading.Lock()

    def load(self, program):
        assert self.inside.acquire(blocking=False), "two loads at the same time"
        try:
            if program.name in self.slow:
                self.entered[program.name].set()
                assert self.slow[program.name].wait(10)
            if program.name in self.broken:
                raise OSError(program.name)
            self.loaded.append(program.name)
        finally:
            self.inside.release()


def test_each_program_is_loaded_once_in_order():
    machine, done = Machine(), threading.Event()
    loader = ProgramLoader(programs("a", "b", "c", "d"), machine.load)
    loader.require("c")
    loader.require("c")
    loader.start(done.set)
    assert done.wait(10)
    assert machine.loaded == ["c", "a", "b", "d"]
    loader.require("d")
    loader.stop()


def test_a_program_that_is_needed_goes_before_those_that_wait():
    machine = Machine(slow=("a",))
    loader = ProgramLoader(programs("a", "b", "c"), machine.load)
    loader.start()
    assert machine.entered["a"].wait(10)
    waiter = threading.Thread(target=loader.require, args=("c",))
    waiter.start()
    while not loader._urgent:
        pass
    machine.slow["a"].set()
    waiter.join(10)
    assert machine.loaded[:2] == ["a", "c"]
    loader.require("b")
    loader.stop()


def test_a_failure_in_the_background_reaches_whoever_asks_next():
    machine, entered = Machine(broken=("b",)), threading.Event()
    loader = ProgramLoader(programs("a", "b", "c"), machine.load)
    loader.require("a")
    loader.start(entered.set)
    loader._thread.join(10)
    assert not entered.is_set()
    for name in ("a", "b", "c"):
        with pytest.raises(OSError, match="b"):
            loader.require(name)
    loader.stop()


def test_a_failure_in_the_foreground_is_the_callers():
    loader = ProgramLoader(programs("a"), Machine(broken=("a",)).load)
    with pytest.raises(OSError, match="a"):
        loader.require("a")


def test_stop_ends_the_background():
    machine, done = Machine(slow=("a",)), threading.Event()
    loader = ProgramLoader(programs("a", "b"), machine.load)
    loader.start(done.set)
    assert machine.entered["a"].wait(10)
    loader._stopped = True
    machine.slow["a"].set()
    loader.stop()
    assert machine.loaded == ["a"]
    assert not done.is_set()
