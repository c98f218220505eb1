"""What the tests of stores share: bundles of a fake compiler, places of every kind, and what a whole store is."""

from __future__ import annotations

import multiprocessing
import os
import threading
import uuid
from pathlib import Path

from fake_toolchain import FAKE, write_recipe
from neuron_aot_runtime.store import open_bundle
from neuron_aot_runtime.store.readers import open_reader

from neuron_aot.pipeline import compile_recipe
from neuron_aot.recipe import load_recipe
from neuron_aot.store import Store, open_store
from neuron_aot.store.check import check_store

# Spawned: this process may have threads (a store's client is one) that do not survive a fork.
PROCESSES = multiprocessing.get_context("spawn")


def make_bundle(directory: Path, *, ref: str = "fake/demo", **recipe) -> Store:
    """A local store with one bundle of four programs; FAKE_COMPILER must be set (the ``compiler`` fixture)."""
    store = open_store(str(directory / "store"))
    compile_recipe(load_recipe(write_recipe(directory, **recipe)), store, FAKE, ref=ref, jobs=1)
    return store


def new_place(kind: str, directory: Path) -> str:
    """The location of a store of that kind, which is not there yet."""
    name = uuid.uuid4().hex[:12]
    return {
        "local": str(directory / name),
        "s3": f"s3://bucket/{name}",
        "memory": f"memory://{name}",
        "file": f"file://{directory}/{name}",
    }[kind]


def check_whole(store: Store) -> None:
    """All that is there is what its name says, and nothing names what is not there."""
    problems = check_store(store)
    assert not problems, [str(problem.error) for problem in problems]


def read_all(location: str, ref: str) -> str:
    """Open a bundle as a server does and verify every artifact; returns its id."""
    bundle = open_bundle(f"{location}@{ref}", reader=open_reader(location))
    for program in bundle.manifest.programs:
        bundle.artifact_path(program)
    return bundle.bundle_id


class DieAt:
    """Kills this process before the n-th writing call of a back end; counts them all."""

    WRITES = ("create", "create_file", "replace", "replace_file", "delete")

    def __init__(self, store: Store, step: int) -> None:
        self.left, self.lock = step, threading.Lock()
        for name in self.WRITES:
            setattr(store.backend, name, self._counted(getattr(store.backend, name)))

    def _counted(self, method):
        def call(*args, **options):
            with self.lock:
                if self.left == 0:
                    os.kill(os.getpid(), 9)
                self.left -= 1
            return method(*args, **options)

        return call


def run_in_process(function, *arguments) -> int:
    """Call ``function`` in a process of its own; returns its exit code, negative for a signal."""
    process = PROCESSES.Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode
