"""Claims: hosts that share no lock do not both store a program, and no dead one is waited for longer than needed."""

from __future__ import annotations

import threading
import time

import pytest
from stores import new_place, run_in_process

from neuron_aot.store import claims, open_store

KEY = "a" * 64


@pytest.fixture
def place(s3, tmp_path):
    return new_place("s3", tmp_path)


def _claim_and_die(place: str, owner: str) -> None:
    import os

    with claims.claimed(open_store(place).backend, KEY, owner):
        os.kill(os.getpid(), 9)


def _take(backend, owner: str, taken: list) -> threading.Thread:
    def take():
        with claims.claimed(backend, KEY, owner, poll=0.05):
            taken.append(owner)

    thread = threading.Thread(target=take)
    thread.start()
    return thread


def test_others_wait_until_the_claim_ends_with_success_or_error(place):
    backend, taken = open_store(place).backend, []
    with pytest.raises(RuntimeError), claims.claimed(backend, KEY, "first"):
        waiting = _take(backend, "second", taken)
        time.sleep(0.3)
        assert not taken
        raise RuntimeError
    waiting.join(20)
    assert taken == ["second"] and backend.names("leases") == []


def test_a_dead_writer_of_this_host_is_not_waited_for_and_one_of_another_is_for_a_while(place, monkeypatch):
    backend, taken = open_store(place).backend, []
    assert run_in_process(_claim_and_die, place, "here") == -9
    _take(backend, "here", taken).join(20)
    assert taken == ["here"] and backend.names("leases") == []
    assert run_in_process(_claim_and_die, place, "elsewhere") == -9
    waiting = _take(backend, "here", taken)
    time.sleep(0.3)
    assert taken == ["here"]
    monkeypatch.setattr(claims, "ALIVE", 0)
    waiting.join(20)
    assert taken == ["here", "here"] and backend.names("leases") == []


def test_a_long_upload_keeps_its_claim(place, monkeypatch):
    monkeypatch.setattr(claims, "ALIVE", 4)
    backend, taken = open_store(place).backend, []
    with claims.claimed(backend, KEY, "first"):
        waiting = _take(backend, "second", taken)
        time.sleep(6)
        assert not taken
    waiting.join(20)
    assert taken == ["second"]


def test_processes_that_share_a_cache_are_one_host(place, tmp_path, monkeypatch):
    here = open_store(place)._host()
    assert open_store(place)._host() == here
    monkeypatch.setenv("NEURON_AOT_CACHE", str(tmp_path / "other"))
    assert open_store(place)._host() != here
