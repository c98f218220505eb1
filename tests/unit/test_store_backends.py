"""One suite for every kind of store: whatever its storage, a back end does the same, and so does a store on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from neuron_aot_runtime.contract.canonical import digest_bytes
from neuron_aot_runtime.contract.errors import IntegrityError, NotFoundError, UsageError
from neuron_aot_runtime.contract.layout import blob_path, bundle_path, program_path
from neuron_aot_runtime.contract.manifest import Artifact
from neuron_aot_runtime.store import RefRecord, open_bundle, read_ref
from neuron_aot_runtime.store import reader as reading
from stores import check_whole, make_bundle, new_place, read_all

from neuron_aot.store import open_store
from neuron_aot.store.archive import export_bundle, import_bundle
from neuron_aot.store.backend import open_backend
from neuron_aot.store.check import check_store, repair
from neuron_aot.store.listing import list_bundles
from neuron_aot.store.refs import history, remove_ref, rollback
from neuron_aot.store.transfer import copy_bundle

#: Another configuration that shares programs with the one that ``make_bundle`` makes by default.
SHARING = {"max_num_seqs": 1, "num_gpu_blocks_override": 17}


@pytest.fixture(params=["local", "s3", "memory", "file"])
def place(request, tmp_path):
    if request.param == "s3":
        request.getfixturevalue("s3")
    return new_place(request.param, tmp_path)


@pytest.fixture
def backend(place):
    return open_backend(place)


@pytest.fixture
def source(tmp_path, compiler):
    return make_bundle(tmp_path / "source")


def push(source, place, ref="fake/demo", **options):
    return copy_bundle(open_bundle(f"{source.location}@{ref}"), open_store(place), ref=ref, **options)


def damage(place, path, how):
    backend = open_backend(place)
    data = backend.read(path)
    if how == "missing":
        backend.delete(path)
    else:
        backend.replace(path, {"flipped": bytes([data[0] ^ 1]) + data[1:], "zeroed": bytes(len(data)), "truncated": data[:-1], "empty": b""}[how])  # fmt: skip


def test_objects_appear_whole_and_the_first_creator_wins(backend, tmp_path):
    with pytest.raises(NotFoundError):
        backend.read("refs/a.json")
    with pytest.raises(NotFoundError):
        backend.stat("refs/a.json")
    with pytest.raises(NotFoundError):
        list(backend.stream("refs/a.json"))
    assert backend.list("refs") == [] and backend.names("refs") == []
    assert backend.create("refs/a.json", b"first")
    assert not backend.create("refs/a.json", b"second")
    assert backend.read("refs/a.json") == b"first"
    backend.replace("refs/a.json", b"third")
    assert backend.stat("refs/a.json").size == 5 and backend.stat("refs/a.json").path == "refs/a.json"
    assert b"".join(backend.stream("refs/a.json")) == b"third"
    assert b"".join(backend.stream("refs/a.json", 2)) == b"ird"
    backend.create("refs/b/c.json", b"1")
    entries = backend.list("refs")
    assert [(entry.path, entry.size) for entry in entries] == [("refs/a.json", 5), ("refs/b/c.json", 1)]
    assert all(abs(entry.modified - os.stat(tmp_path).st_mtime) < 3600 for entry in entries)
    assert backend.names("refs/b") == ["refs/b/c.json"]
    backend.delete("refs/a.json")
    backend.delete("refs/a.json")
    assert backend.names("refs") == ["refs/b/c.json"]


def test_files_are_created_and_replaced(backend, tmp_path):
    path = blob_path(digest_bytes(b"x"))
    for content, created in ((b"x" * 3_000_000, True), (b"y" * 3_000_000, False)):
        made = tmp_path / f"made-{created}"
        made.write_bytes(content)
        assert backend.create_file(path, made) is created
        assert backend.read(path) == b"x" * 3_000_000
    (tmp_path / "made").write_bytes(b"z")
    backend.replace_file(path, tmp_path / "made")
    assert backend.read(path) == b"z"


def test_an_absurd_record_is_not_read(backend, monkeypatch):
    backend.create("refs/a.json", b"x" * 11)
    monkeypatch.setattr(reading, "RECORD_LIMIT", 10)
    with pytest.raises(IntegrityError, match="absurdly large"):
        backend.read("refs/a.json")


def test_push_moves_only_what_is_missing_and_readers_get_it_whole(source, place, tmp_path, compiler):
    told = []
    first = push(source, place, progress=lambda done, total: told.append((done, total)))
    assert first.moved_blobs == 4 and first.kept_blobs == 0 and told[-1][0] == told[-1][1] == first.moved_bytes
    assert first.bundle == first.source_bundle == read_all(place, "fake/demo")
    again = push(source, place)
    assert (again.moved_blobs, again.kept_blobs) == (0, 4)
    store = open_store(place)
    check_whole(store)
    assert store.names("leases") == []
    # Another configuration that shares two of its programs
    other = make_bundle(tmp_path / "other", engine=SHARING)
    shared = push(other, place, ref="fake/demo")
    assert shared.kept_blobs >= 1 and shared.bundle != first.bundle
    assert read_all(place, "fake/demo") == shared.bundle
    back = copy_bundle(open_bundle(f"{place}@fake/demo"), open_store(str(tmp_path / "back")), ref="x")
    assert back.bundle == shared.bundle
    check_whole(open_store(str(tmp_path / "back")))


def test_a_compile_against_the_store_and_its_copies_finds_what_was_pushed(source, place, tmp_path, compiler):
    from fake_toolchain import FAKE, runs, write_recipe

    from neuron_aot.pipeline import compile_recipe, make_plan
    from neuron_aot.recipe import load_recipe

    push(source, place)
    made = len(runs())
    recipe = load_recipe(write_recipe(tmp_path / "source"))
    pulled, imported = open_store(str(tmp_path / "pulled")), open_store(str(tmp_path / "imported"))
    copy_bundle(open_bundle(f"{place}@fake/demo"), pulled)
    export_bundle(open_bundle(f"{place}@fake/demo"), tmp_path / "bundle.tar")
    import_bundle(tmp_path / "bundle.tar", imported)
    for store in (open_store(place), pulled, imported):
        assert len(make_plan(recipe, store, FAKE).found) == 4  # known by their requests: nothing is lowered
        report = compile_recipe(recipe, store, FAKE, ref="again", jobs=1)
        assert (report.hits, report.compiled) == (4, 0) and len(runs()) == made
        assert read_all(store.location, "again") == report.bundle


def test_refs_have_a_history_and_roll_back(source, place, tmp_path, compiler):
    first = push(source, place).bundle
    second = push(make_bundle(tmp_path / "other", engine=SHARING), place).bundle
    store = open_store(place)
    assert [entry.bundle for entry in history(store.backend, "fake/demo")] == [second, first]
    assert rollback(store.backend, "fake/demo").bundle == first == read_all(place, "fake/demo")
    assert [entry.number for entry in history(store.backend, "fake/demo")] == [3, 2, 1]
    assert rollback(store.backend, "fake/demo").bundle == second
    store.set_ref("fake/prod", RefRecord(bundle=second))
    store.set_ref("fake/prod", RefRecord(bundle=second))  # says the same: no entry
    assert len(history(store.backend, "fake/prod")) == 1
    with pytest.raises(UsageError, match="never meant another"):
        rollback(store.backend, "fake/prod")
    remove_ref(store.backend, "fake/prod")
    with pytest.raises(NotFoundError):
        read_ref(store.backend, "fake/prod")
    assert len(history(store.backend, "fake/prod")) == 1
    with pytest.raises(NotFoundError, match="was not moved"):
        store.set_ref("fake/prod", RefRecord(bundle="0" * 64))


@pytest.mark.parametrize("how", ["flipped", "zeroed", "truncated", "empty", "missing"])
def test_damage_is_found_named_never_called_healthy_and_repaired(source, place, how):
    push(source, place)
    store = open_store(place)
    assert [item.state for item in list_bundles(store)] == ["unverified"]
    assert [item.state for item in list_bundles(store, verify=True)] == ["healthy"]
    program = open_bundle(f"{place}@fake/demo").manifest.programs[0]
    path = blob_path(program.artifact.digest)
    damage(place, path, how)
    problems = check_store(store)
    assert {problem.path for problem in problems} == {path} or how == "missing"
    assert path in {problem.path for problem in problems}
    assert all(isinstance(problem.error, (IntegrityError, NotFoundError)) for problem in problems)
    for verify in (False, True):
        assert list_bundles(store, verify=verify)[0].state in ("unverified", "damaged", "incomplete")
    assert list_bundles(store, verify=True)[0].state != "healthy"
    with pytest.raises((IntegrityError, NotFoundError)):
        read_all(place, "fake/demo")
    assert not repair(store, problems, source.backend)
    check_whole(store)
    assert read_all(place, "fake/demo")


def test_dangling_records_and_incomplete_bundles_are_found_and_repaired(source, place):
    bundle = push(source, place).bundle
    store, program = open_store(place), open_bundle(f"{place}@fake/demo").manifest.programs[0]
    damage(place, program_path(program.program_key), "missing")
    damage(place, bundle_path(bundle), "flipped")
    problems = check_store(store)
    told = {problem.path: problem.error.message for problem in problems}
    assert bundle_path(bundle) in told and any("dangling" in message for message in told.values())
    damage(place, bundle_path(bundle), "missing")
    assert "refs/fake/demo.json" in {problem.path for problem in check_store(store)}
    assert push(source, place).bundle == bundle  # pushing again heals what names say
    check_whole(store)


def test_a_damaged_source_is_never_pushed(source, place):
    program = open_bundle(f"{source.location}@fake/demo").manifest.programs[0]
    damage(source.location, blob_path(program.artifact.digest), "flipped")
    with pytest.raises(IntegrityError):
        push(source, place)
    store = open_store(place)
    assert store.names("bundles") == store.names("refs") == store.names("leases") == []
    assert blob_path(program.artifact.digest) not in store.names("blobs")


def test_the_first_writer_of_a_program_wins_and_the_other_bundle_adopts(source, place, tmp_path, compiler):
    """Two hosts whose compilers gave different bytes for the same programs."""
    compiler(random=True)
    second_host = make_bundle(tmp_path / "second")
    first = push(source, place)
    second = push(second_host, place)
    assert len(second.adopted) == 4 and second.moved_blobs == 0
    assert second.bundle == first.bundle != second.source_bundle
    store = open_store(place)
    assert len(store.names("differences")) == 4 and len(store.names("blobs")) == 4
    check_whole(store)


def test_an_existing_blob_that_is_damaged_is_healed_by_the_next_writer(source, place):
    store = open_store(place)
    with store.scratch() as directory:
        (directory / "a").write_bytes(b"content")
        digest, size = store.put_blob(directory / "a")
    damage(place, blob_path(digest), "flipped")
    assert not store.is_whole(Artifact(format="x", digest=digest, size=size))
    with store.scratch() as directory:
        (directory / "a").write_bytes(b"content")
        store.put_blob(directory / "a")
    assert store.is_whole(Artifact(format="x", digest=digest, size=size))
    assert Path(blob_path(digest)).name in digest
