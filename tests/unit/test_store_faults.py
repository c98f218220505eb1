"""Real processes that die, race and read while others write. Whoever is killed, a reader finds the old or the new."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fake_toolchain import FAKE, write_recipe
from neuron_aot_runtime.contract.errors import NotFoundError
from neuron_aot_runtime.store import RefRecord, open_bundle, read_ref
from stores import PROCESSES, At, check_whole, die, make_bundle, new_place, read_all, run_in_process

from neuron_aot.pipeline import compile_recipe
from neuron_aot.recipe import load_recipe
from neuron_aot.store import leases, open_store, streams, transfer
from neuron_aot.store.gc import collect

KILLED = -9
OTHER = {"max_num_seqs": 1, "num_gpu_blocks_override": 17}


@pytest.fixture(params=["local", "s3"])
def place(request, tmp_path):
    if request.param == "s3":
        request.getfixturevalue("s3")
    return new_place(request.param, tmp_path)


def push(source: str, place: str, ref: str = "fake/demo"):
    return transfer.copy_bundle(open_bundle(f"{source}@{ref}"), open_store(place), ref=ref)


def _push_and_die(source: str, place: str, step: int) -> None:
    streams.STREAMS = 1  # one object after the other, so that the n-th is the same one in each run
    store = open_store(place)
    At(store, step, die)
    transfer.copy_bundle(open_bundle(f"{source}@fake/demo"), store, ref="fake/demo")


def test_a_push_killed_at_any_object_shows_readers_the_old_bundle_or_the_new_one(
    place, tmp_path, compiler, monkeypatch
):
    old = make_bundle(tmp_path / "old", engine=OTHER)
    new = make_bundle(tmp_path / "new")
    step, ids = 0, {push(old.location, place).bundle}
    while run_in_process(_push_and_die, new.location, place, step) == KILLED:
        store = open_store(place)
        seen = read_all(place, "fake/demo")
        check_whole(store)
        if step < 9:
            assert seen in ids  # the ref has not moved: it is among the last
        step += 1
        assert step < 100
    assert step >= 10  # lease, blobs, programs, requests, origin, bundle, history, ref, lease
    final = open_bundle(f"{place}@fake/demo").bundle_id
    assert final not in ids
    store = open_store(place)
    store.clean_litter()
    assert len(store.names("leases")) >= step - 2  # of the killed; a gc takes them once they are old
    monkeypatch.setattr(leases, "PUSH_ALIVE", 0)
    collect(store, grace=0)
    assert store.names("leases") == [] and read_all(place, "fake/demo") == final
    check_whole(store)


def _compile(directory: str, place: str, cache: str) -> None:
    import os

    os.environ["NEURON_AOT_CACHE"] = cache  # each writer is a host of its own
    compile_recipe(load_recipe(Path(directory, "recipe.yaml")), open_store(place), FAKE, ref="fake/demo", jobs=1)


def test_eight_concurrent_writers_of_the_same_keys_leave_one_bundle(place, tmp_path, compiler):
    """On S3 there is no lock: eight hosts compile the same programs to different bytes at the same time."""
    compiler(random=True, seconds=0.1)
    write_recipe(tmp_path)
    writers = [
        PROCESSES.Process(target=_compile, args=(str(tmp_path), place, str(tmp_path / f"cache{number}")))
        for number in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0] * 8
    store = open_store(place)
    check_whole(store)
    assert len(store.names("bundles")) == 1 and len(store.names("programs")) == 4
    assert store.names("leases") == [] and read_all(place, "fake/demo")
    winners = {store.program(Path(path).stem).artifact.digest for path in store.names("programs")}
    assert {f"sha256:{Path(path).name}" for path in store.names("blobs")} == winners  # the losers left no litter
    lost = {f"sha256:{Path(path).stem}" for path in store.names("differences")}
    assert lost.isdisjoint(winners)
    if place.startswith("s3"):
        assert lost  # but that their bytes differed is known


def _push_many(first: str, second: str, place: str, rounds: int) -> None:
    for _ in range(rounds):
        push(first, place)
        push(second, place)


def test_a_reader_during_pushes_sees_whole_bundles_only(place, tmp_path, compiler):
    first, second = make_bundle(tmp_path / "a", engine=OTHER), make_bundle(tmp_path / "b")
    ids = {push(first.location, place).bundle, open_bundle(f"{second.location}@fake/demo").bundle_id}
    writer = PROCESSES.Process(target=_push_many, args=(first.location, second.location, place, 5))
    writer.start()
    seen, reads = set(), 0
    while writer.is_alive() or not reads:
        seen.add(read_all(place, "fake/demo"))
        reads += 1
    writer.join()
    assert writer.exitcode == 0 and seen <= ids and reads > 3


def test_a_gc_during_pushes_takes_nothing_that_they_need(place, tmp_path, compiler):
    first, second = make_bundle(tmp_path / "a", engine=OTHER), make_bundle(tmp_path / "b")
    push(first.location, place)
    writer = PROCESSES.Process(target=_push_many, args=(first.location, second.location, place, 5))
    writer.start()
    runs = 0
    while writer.is_alive():
        # Nearly all is old enough to go: only the leases protect what a push has found there.
        collect(open_store(place), grace=0.2)
        runs += 1
        time.sleep(0.05)
    writer.join()
    assert writer.exitcode == 0 and runs
    check_whole(open_store(place))
    assert read_all(place, "fake/demo") == open_bundle(f"{second.location}@fake/demo").bundle_id


def _with_a_gc_at_each_step(place: str, before, work) -> None:
    """``work(store)`` once per writing call of its own, with a gc that spares nothing before that call."""
    step, ran = 0, True
    while ran:
        before()
        store = open_store(place)
        at = At(store, step, lambda: collect(open_store(place), grace=-60))
        work(store)
        check_whole(open_store(place))
        step, ran = step + 1, at.left < 0
    assert step > 4  # lease, history, ref, lease at least


def test_a_gc_at_any_moment_of_a_push_takes_nothing_that_it_needs(place, tmp_path, compiler, monkeypatch):
    """Of a bundle that is there already, and old: only the push that is under way keeps it."""
    monkeypatch.setattr(streams, "STREAMS", 1)
    first, second = make_bundle(tmp_path / "a", engine=OTHER), make_bundle(tmp_path / "b")
    bundle = open_bundle(f"{second.location}@fake/demo")

    def before() -> None:
        push(second.location, place)
        push(first.location, place)

    def work(store) -> None:
        transfer.copy_bundle(bundle, store, ref="fake/demo")
        assert read_all(place, "fake/demo") == bundle.bundle_id

    _with_a_gc_at_each_step(place, before, work)


def test_a_gc_at_any_moment_of_moving_a_ref_never_leaves_it_dangling(place, tmp_path, compiler):
    first, second = make_bundle(tmp_path / "a", engine=OTHER), make_bundle(tmp_path / "b")

    def before() -> None:
        push(second.location, place)
        push(first.location, place)

    wanted, moved = open_bundle(f"{second.location}@fake/demo").bundle_id, []

    def work(store) -> None:
        try:
            store.set_ref("fake/demo", RefRecord(bundle=wanted))
        except NotFoundError:  # the gc was first; the ref is what it was
            assert read_ref(store.backend, "fake/demo").bundle != wanted
        else:
            moved.append(read_all(place, "fake/demo"))

    _with_a_gc_at_each_step(place, before, work)
    assert len(moved) >= 3 and set(moved) == {wanted}  # the gc came while the lease was held, or never
