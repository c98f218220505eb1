"""Remote stores behind the cache: fetched once a host, verified, bounded, offline, and never alive across a fork."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from neuron_aot_runtime.contract.canonical import digest_bytes
from neuron_aot_runtime.contract.errors import (
    AccessDeniedError,
    ConfigError,
    IntegrityError,
    NotFoundError,
    OfflineError,
    UnreachableError,
)
from neuron_aot_runtime.contract.layout import blob_path
from neuron_aot_runtime.settings import read_store_settings
from neuron_aot_runtime.store import LocalReader, RefRecord, open_bundle, open_reader
from neuron_aot_runtime.store.cache import Cache, CachedReader
from neuron_aot_runtime.store.fetch import fetch_bundle
from stores import PROCESSES, make_bundle, new_place, run_in_process

from neuron_aot.store import open_store
from neuron_aot.store.transfer import copy_bundle


@pytest.fixture
def place(s3, tmp_path, compiler):
    source = make_bundle(tmp_path / "source")
    place = new_place("s3", tmp_path)
    copy_bundle(open_bundle(f"{source.location}@fake/demo"), open_store(place), ref="fake/demo")
    return place


class Counting(LocalReader):
    """A "remote" store that counts what is streamed from it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.streamed: list[tuple[str, int]] = []

    def stream(self, path, start=0):
        self.streamed.append((path, start))
        time.sleep(0.05)
        yield from super().stream(path, start)


@pytest.fixture
def remote(tmp_path):
    return Counting(tmp_path / "remote")


def put(remote, content: bytes) -> tuple[str, int]:
    digest = digest_bytes(content)
    path = remote.root / blob_path(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return digest, len(content)


def test_a_server_process_fetches_without_a_client_of_its_own(place, monkeypatch):
    assert run_in_process(_fetch_and_look, place) == 0
    # Again from the warm cache, with the network off
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(UnreachableError):
        fetch_bundle(f"{place}@fake/demo")
    monkeypatch.setenv("NEURON_AOT_OFFLINE", "1")
    assert run_in_process(_fetch_and_look, place) == 0
    with pytest.raises(OfflineError, match="refs/fake/prod"):
        fetch_bundle(f"{place}@fake/prod")


def _fetch_and_look(place: str) -> None:
    bundle = fetch_bundle(f"{place}@fake/demo")
    assert all(bundle.artifact_path(program).is_file() for program in bundle.manifest.programs)
    assert bundle.store_root == place and bundle.ref.bundle == bundle.bundle_id
    assert "obstore" not in sys.modules and threading.active_count() == 1


def test_a_cached_blob_that_is_damaged_or_lost_is_fetched_again(place):
    for bundle in (fetch_bundle(f"{place}@fake/demo"), open_bundle(f"{place}@fake/demo")):
        first, second = bundle.manifest.programs[:2]
        path = bundle.artifact_path(first)
        path.write_bytes(b"x" * first.artifact.size)
        bundle.artifact_path(second).unlink()
        assert digest_bytes(bundle.artifact_path(first).read_bytes()) == first.artifact.digest
        assert bundle.artifact_path(second).is_file()


def test_a_remote_blob_that_is_damaged_is_named_and_not_kept(place):
    bundle = open_bundle(f"{place}@fake/demo")
    digest = bundle.manifest.programs[0].artifact.digest
    backend = open_store(place).backend
    backend.replace(blob_path(digest), bytes(backend.stat(blob_path(digest)).size))
    with pytest.raises(IntegrityError) as caught:
        fetch_bundle(f"{place}@fake/demo")
    assert blob_path(digest) in str(caught.value) and "verify" in str(caught.value)
    assert not read_store_settings().cache.joinpath(blob_path(digest)).exists()
    backend.delete(blob_path(digest))
    with pytest.raises(NotFoundError):
        bundle.artifact_path(bundle.manifest.programs[0])


def test_a_moved_ref_is_seen_at_once_and_a_bundle_id_needs_no_network(place, monkeypatch):
    bundle = fetch_bundle(f"{place}@fake/demo")
    store = open_store(place)
    store.set_ref("fake/demo", RefRecord(bundle=bundle.bundle_id, model="moved"))
    assert open_bundle(f"{place}@fake/demo").ref.model == "moved"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    pinned = open_bundle(f"{place}@{bundle.bundle_id}")
    assert all(pinned.artifact_path(program) for program in pinned.manifest.programs)


def test_one_fetch_a_blob_among_threads_and_processes(remote, tmp_path):
    digest, size = put(remote, os.urandom(100_000))
    cache = Cache(tmp_path / "cache", 10**9)
    threads = [threading.Thread(target=cache.fetch, args=(remote, digest, size)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(remote.streamed) == 1
    other, size = put(remote, os.urandom(100_000))
    log = tmp_path / "log"
    ranks = [PROCESSES.Process(target=_rank, args=(remote.root, tmp_path, other, size, log)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * 4 and len(log.read_text().split()) == 1


def _rank(root: Path, tmp_path: Path, digest: str, size: int, log: Path) -> None:
    remote = Counting(root)
    path = Cache(tmp_path / "cache", 10**9).fetch(remote, digest, size)
    assert digest_bytes(path.read_bytes()) == digest
    with open(log, "a") as out:
        out.write("fetched\n" * len(remote.streamed))


def test_an_interrupted_fetch_goes_on_and_a_wrong_beginning_starts_again(remote, tmp_path):
    content = os.urandom(100_000)
    digest, size = put(remote, content)
    cache = Cache(tmp_path / "cache", 10**9)
    partial = tmp_path / "cache" / "partial" / digest.removeprefix("sha256:")
    for beginning, starts in ((content[:60_000], [60_000]), (b"x" * 60_000, [60_000, 0]), (content + b"more", [0])):
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(beginning)
        remote.streamed.clear()
        path = cache.fetch(remote, digest, size)
        assert path.read_bytes() == content and [start for _, start in remote.streamed] == starts
        path.unlink()


def test_an_endless_blob_is_refused_within_its_size(remote, tmp_path):
    digest, size = put(remote, b"short")
    (remote.root / blob_path(digest)).write_bytes(b"x" * 10_000_000)
    with pytest.raises(IntegrityError, match="damaged"):
        Cache(tmp_path / "cache", 10**9).fetch(remote, digest, size)
    assert not list((tmp_path / "cache" / "partial").iterdir())


def test_the_cache_is_bounded_and_what_is_in_use_stays(remote, tmp_path):
    cache = Cache(tmp_path / "cache", 250_000)
    blobs = [put(remote, os.urandom(100_000)) for _ in range(4)]
    for age, (digest, size) in zip((3000, 2000, 0), blobs[:3], strict=True):
        path = cache.fetch(remote, digest, size)
        os.utime(path, (time.time() - age, time.time() - age))
    cache.fetch(remote, *blobs[3])
    kept = [cache.blob(digest).exists() for digest, _ in blobs]
    assert kept == [False, False, True, True]


def test_a_read_only_cache_serves_and_says_what_it_cannot_fetch(remote, tmp_path):
    digest, size = put(remote, b"content")
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.getuid() and directory.stat().st_mode & 0o077 == 0:
            os.chmod(directory, 0o755)  # pytest's own are the user's alone
    cache = Cache(tmp_path / "cache", 10**9)
    cache.fetch(remote, digest, size)
    os.utime(cache.blob(digest), (1, 1))
    missing = put(remote, b"other")
    if (child := os.fork()) == 0:
        code = 1
        try:
            os.setgid(65534), os.setuid(65534)
            assert cache.fetch(remote, digest, size).read_bytes() == b"content"
            try:
                cache.fetch(remote, *missing)
            except AccessDeniedError as error:
                code = 0 if "NEURON_AOT_CACHE" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_read_only_credentials_serve(place, s3_server, monkeypatch):
    import s3_server as server

    for name, value in s3_server.environment(server.READER).items():
        monkeypatch.setenv(name, value)
    assert fetch_bundle(f"{place}@fake/demo").manifest
    with pytest.raises(AccessDeniedError):
        open_store(place).set_ref("fake/prod", RefRecord(bundle=fetch_bundle(f"{place}@fake/demo").bundle_id))


def test_offline_makes_no_call(tmp_path):
    reader = CachedReader("s3://bucket/x", Cache(tmp_path / "cache", 10), None)
    for call in (lambda: reader.read("refs/a.json"), lambda: reader.blob_file("sha256:" + "0" * 64, 1)):
        with pytest.raises(OfflineError):
            call()
    assert reader.names("refs") == []


def test_a_read_only_mount_is_read_without_a_write(tmp_path, compiler):
    make_bundle(tmp_path / "source")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "source").rglob("*")}
    bundle = fetch_bundle(f"{tmp_path / 'source' / 'store'}@fake/demo")
    for program in bundle.manifest.programs:
        bundle.artifact_path(program)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "source").rglob("*")}
    assert not read_store_settings().cache.exists()
    assert isinstance(open_reader(str(tmp_path / "source" / "store")), LocalReader)


@pytest.mark.parametrize(("name", "value"), [("NEURON_AOT_CACHE_SIZE", "lots"), ("NEURON_AOT_OFFLINE", "maybe")])
def test_settings_that_cannot_be_meant(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        read_store_settings()


def test_where_the_cache_is(tmp_path):
    sized = read_store_settings({"NEURON_AOT_CACHE": "/c", "NEURON_AOT_CACHE_SIZE": "2 GB"})
    assert (sized.cache, sized.cache_size, sized.offline) == (Path("/c"), 2 * 10**9, False)
    assert read_store_settings({"XDG_CACHE_HOME": "/x"}).cache == Path("/x/neuron-aot")
    assert read_store_settings({"HOME": str(tmp_path)}).cache == tmp_path / ".cache" / "neuron-aot"
    assert "no writable home" in read_store_settings({"HOME": "/nonexistent"}).sources["cache"]
