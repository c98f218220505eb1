"""What is kept beside an artifact (its HLO, the compiler's log) goes wherever the artifact goes, and stays as long."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace

import pytest
from fake_toolchain import FAKE, FakeGenerator, write_recipe
from neuron_aot_runtime.contract.errors import NotFoundError, StoreError
from neuron_aot_runtime.contract.layout import blob_path, failure_path
from neuron_aot_runtime.contract.manifest import Artifact
from neuron_aot_runtime.store import FailureRecord, open_bundle, read_program
from stores import check_whole, new_place

from neuron_aot.inspect import attachment
from neuron_aot.pipeline import compile_recipe
from neuron_aot.recipe import load_recipe
from neuron_aot.store import open_store
from neuron_aot.store.archive import export_bundle, import_bundle
from neuron_aot.store.check import check_store, repair
from neuron_aot.store.gc import collect, purge
from neuron_aot.store.transfer import copy_bundle
from neuron_aot.verify import verify_stored


class Talkative(FakeGenerator):
    """Keeps the HLO, which programs share where it is equal, and a log that is another one each time."""

    def generate(self, hlo, artifact):
        super().generate(hlo, artifact)
        kept = {"hlo": artifact.with_name("hlo"), "log": artifact.with_name("log")}
        kept["hlo"].write_bytes(hlo)
        kept["log"].write_bytes(b"log " + os.urandom(8))
        return kept


def talkative(target, options=None):
    return Talkative()


TALKATIVE = replace(FAKE, code_generator=talkative)


@pytest.fixture
def store(compiler, tmp_path):
    return compiled(tmp_path, "store")


def compiled(directory, name):
    store = open_store(str(directory / name))
    compile_recipe(load_recipe(write_recipe(directory)), store, TALKATIVE, ref="fake/demo", jobs=1)
    return store


def records(location):
    bundle = open_bundle(f"{location}@fake/demo")
    return bundle, [read_program(bundle.reader, program.program_key) for program in bundle.manifest.programs]


def age(store):
    for path in store.root.rglob("*"):
        os.utime(path, (time.time() - 9e5,) * 2)


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_they_are_pushed_and_read_and_survive_gc(kind, store, s3, tmp_path):
    place = new_place(kind, tmp_path)
    report = copy_bundle(open_bundle(f"{store.root}@fake/demo"), open_store(place), ref="fake/demo")
    assert report.moved_blobs == 12
    check_whole(open_store(place))
    collect(open_store(place), grace=0)
    bundle, there = records(place)
    assert [attachment(bundle, record, "hlo") for record in there] and not verify_stored(bundle)
    again = copy_bundle(open_bundle(f"{store.root}@fake/demo"), open_store(place), ref="fake/demo")
    assert (again.moved_blobs, again.kept_blobs) == (0, 12)


def test_a_push_keeps_the_logs_that_are_there(store, tmp_path):
    other = compiled(tmp_path, "other")
    report = copy_bundle(open_bundle(f"{store.root}@fake/demo"), other, ref="fake/demo")
    assert report.moved_blobs == 0 and not report.adopted
    check_whole(other)


def test_gc_takes_them_with_the_program_and_no_earlier(store):
    age(store)
    collect(store, grace=1000)
    check_whole(store)
    assert len(store.names("blobs")) == 12
    (store.root / "refs/fake/demo.json").unlink()
    shutil.rmtree(store.root / "history")
    collect(store, grace=1000)
    assert not store.names("blobs") and not store.names("programs")


def test_purge_takes_them(store):
    _, there = records(store.root)
    purge(store, there[0].program_key, force=True)
    assert not any((store.root / blob_path(blob.digest)).exists() for blob in there[0].blobs)
    assert len(store.names("blobs")) == 9


def test_they_are_in_a_bundle_file(store, tmp_path):
    export_bundle(open_bundle(f"{store.root}@fake/demo"), tmp_path / "file.tar")
    import_bundle(tmp_path / "file.tar", open_store(str(tmp_path / "new")), ref="fake/demo")
    bundle, there = records(tmp_path / "new")
    assert all(attachment(bundle, record, "log").startswith(b"log ") for record in there)


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_lost_one_is_named_refused_and_repaired(how, store, tmp_path):
    copy_bundle(open_bundle(f"{store.root}@fake/demo"), open_store(str(tmp_path / "copy")), ref="fake/demo")
    bundle, there = records(store.root)
    path = store.root / blob_path(there[0].attachments["hlo"].digest)
    path.unlink() if how == "gone" else path.write_bytes(bytes(path.stat().st_size))
    ((name, error),) = verify_stored(bundle)
    assert name == bundle.manifest.programs[0].name and "the hlo kept with" in str(error)
    with pytest.raises(StoreError):
        attachment(bundle, there[0], "hlo")
    with pytest.raises(StoreError):
        export_bundle(bundle, tmp_path / "file.tar")
    with pytest.raises(StoreError):
        copy_bundle(bundle, open_store(str(tmp_path / "third")), ref="fake/demo")
    problems = check_store(store)
    assert problems and not repair(store, problems, open_store(str(tmp_path / "copy")).backend)
    check_whole(store)


def test_failures_are_checked_stay_while_young_and_are_not_pushed(store, tmp_path):
    (tmp_path / "log").write_bytes(b"refused")
    digest, size = store.put_blob(tmp_path / "log")
    record = FailureRecord(
        program_key="a" * 64, code="X", message="m", failed_at="t", log=Artifact(format="log", digest=digest, size=size)
    )
    store.put_failure(record)
    check_whole(store)
    place = tmp_path / "copy"
    copy_bundle(open_bundle(f"{store.root}@fake/demo"), open_store(str(place)), ref="fake/demo")
    assert not list(place.glob("failures/*"))
    os.utime(store.root / blob_path(digest), (time.time() - 9e5,) * 2)
    collect(store, grace=1000)
    assert store.failure("a" * 64) == record
    check_whole(store)
    (store.root / blob_path(digest)).unlink()
    assert [problem.path for problem in check_store(store)] == [blob_path(digest)]
    age(store)
    collect(store, grace=1000)
    assert store.failure("a" * 64) is None and not (store.root / failure_path("a" * 64)).exists()
    with pytest.raises(NotFoundError):
        store.read(failure_path("a" * 64))
