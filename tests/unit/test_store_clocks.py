"""Hosts whose clocks are days apart from the storage's: nobody is taken for dead, and nothing for old, by a wrong clock."""

from __future__ import annotations

import threading
import time

import pytest
from neuron_aot_runtime.store import open_bundle
from stores import check_whole, make_bundle, new_place, read_all

from neuron_aot.store import claims, leases, open_store, transfer
from neuron_aot.store.gc import collect

DAYS = 86400.0
KEY = "a" * 64


@pytest.fixture(params=["local", "s3"])
def place(request, tmp_path):
    if request.param == "s3":
        request.getfixturevalue("s3")
    return new_place(request.param, tmp_path)


@pytest.fixture(params=[-7, 7])
def wrong_clock(request, monkeypatch):
    """Days that this host's clock is ahead, from the call on."""
    true = time.time

    def set_wrong():
        monkeypatch.setattr(time, "time", lambda: true() + request.param * DAYS)

    return set_wrong


def test_a_gc_takes_nothing_that_is_young_by_the_storages_clock(place, tmp_path, compiler, wrong_clock):
    source = make_bundle(tmp_path / "source")
    transfer.copy_bundle(open_bundle(f"{source.location}@fake/demo"), open_store(place))  # no ref leads to it
    before = open_store(place).names("blobs")
    wrong_clock()
    collect(open_store(place))
    assert before and open_store(place).names("blobs") == before
    check_whole(open_store(place))


def test_a_gc_takes_what_is_old_by_the_storages_clock(place, tmp_path, compiler, wrong_clock):
    source = make_bundle(tmp_path / "source")
    transfer.copy_bundle(open_bundle(f"{source.location}@fake/demo"), open_store(place))
    wrong_clock()
    collect(open_store(place), grace=-60)
    assert not open_store(place).names("blobs")


def test_a_push_waits_for_a_running_gc_and_no_longer(place, wrong_clock, monkeypatch):
    backend, ended = open_store(place).backend, threading.Event()
    wrong_clock()

    def wait():
        with leases.held(backend, "push") as lease:
            leases.wait_for_gc(backend, lease, poll=0.05)
            ended.set()

    with leases.held(backend, "gc"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not ended.wait(0.5)
    waiting.join(20)
    assert ended.is_set()


def test_what_a_running_push_relies_on_is_kept(place, tmp_path, compiler, wrong_clock):
    source = make_bundle(tmp_path / "source")
    bundle = open_bundle(f"{source.location}@fake/demo")
    transfer.copy_bundle(bundle, open_store(place))
    keys = [program.program_key for program in bundle.manifest.programs]
    wrong_clock()
    with open_store(place).leased(keys, bundles=[bundle.bundle_id]):
        collect(open_store(place), grace=-60)
    transfer.copy_bundle(bundle, open_store(place), ref="fake/demo")
    assert read_all(place, "fake/demo") == bundle.bundle_id


def test_a_live_writers_claim_is_not_taken(place, wrong_clock):
    backend, taken = open_store(place).backend, threading.Event()
    wrong_clock()

    def take():
        with claims.claimed(backend, KEY, "second", poll=0.05):
            taken.set()

    with claims.claimed(backend, KEY, "first"):
        waiting = threading.Thread(target=take)
        waiting.start()
        assert not taken.wait(0.5)
    waiting.join(20)
    assert taken.is_set()
