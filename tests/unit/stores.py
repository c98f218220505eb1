"""What the tests of stores share: bundles of a fake compiler, places of every kind, and what a whole store is."""

from __future__ import annotations

import multiprocessing
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from fake_toolchain import FAKE, write_recipe
from neuron_aot_runtime.contract.manifest import Artifact
from neuron_aot_runtime.store import ProgramRecord, Provenance, open_bundle
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


def with_artifacts(store: Store, size: int, key: Callable[[str], str]) -> str:
    """Publish the store's bundle with ``size`` random bytes for each program, under the key that ``key`` makes of their
    digest; returns the new bundle's id."""
    manifest, programs = open_bundle(store.location).manifest, []
    for program in manifest.programs:
        with store.scratch() as directory:
            (directory / "a").write_bytes(os.urandom(size))
            digest, _ = store.put_blob(directory / "a")
        artifact = Artifact(format="fake", digest=digest, size=size)
        provenance = Provenance(
            built_at="2026-01-01T00:00:00+00:00", lower_ms=0, generate_ms=0, peak_memory_mb=0, versions={}
        )
        record = ProgramRecord(
            program_key=key(digest), artifact=artifact, target="cpu", code_generator={}, provenance=provenance
        )
        store.put_program(record)
        programs.append(program.model_copy(update={"program_key": record.program_key, "artifact": artifact}))
    return store.publish(manifest.model_copy(update={"programs": tuple(programs)}))


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


class At:
    """Does something before the n-th writing call of a back end. ``left``: negative once it has."""

    WRITES = ("create", "create_file", "replace", "replace_file", "delete")

    def __init__(self, store: Store, step: int, action: Callable[[], object]) -> None:
        self.left, self.lock, self.action = step, threading.Lock(), action
        for name in self.WRITES:
            setattr(store.backend, name, self._counted(getattr(store.backend, name)))

    def _counted(self, method):
        def call(*args, **options):
            with self.lock:
                due, self.left = self.left == 0, self.left - 1
                if due:
                    self.action()
            return method(*args, **options)

        return call


def die() -> None:
    """As a power cut would have it."""
    os.kill(os.getpid(), 9)


def run_in_process(function, *arguments) -> int:
    """Call ``function`` in a process of its own; returns its exit code, negative for a signal."""
    process = PROCESSES.Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode
