"""A disk that is really full: a small file system of its own. Its own error, nothing half, and the same command resumes."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from neuron_aot_runtime.contract.canonical import digest_bytes
from neuron_aot_runtime.contract.errors import FullDiskError
from neuron_aot_runtime.store import open_bundle
from stores import check_whole, make_bundle, new_place, read_all, with_artifacts

from neuron_aot.store import open_store
from neuron_aot.store.archive import export_bundle
from neuron_aot.store.transfer import copy_bundle

_BLOB = 3 << 20


@pytest.fixture
def small(tmp_path):
    """A directory that holds 8 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.fixture
def source(tmp_path, compiler):
    """A bundle of four programs with 3 MiB each: two fit."""
    store = make_bundle(tmp_path / "source")
    bundle = with_artifacts(store, _BLOB, key=lambda digest: digest_bytes(digest.encode()).removeprefix("sha256:"))
    return f"{store.location}@{bundle}"


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_a_copy_to_a_full_disk_says_so_and_goes_on_when_there_is_space(kind, source, small, tmp_path, request):
    if kind == "s3":
        request.getfixturevalue("s3")
        remote = new_place("s3", tmp_path)
        copy_bundle(open_bundle(source), open_store(remote), ref="big")
        source = f"{remote}@big"
    place = str(small / "store")
    (small / "ballast").write_bytes(bytes(1 << 20))
    with pytest.raises(FullDiskError, match="no space is left") as caught:
        copy_bundle(open_bundle(source), open_store(place), ref="big")
    assert caught.value.exit_code == 24 and "gc" in caught.value.next_command
    store = open_store(place)
    check_whole(store)  # nothing half has a final name
    assert store.names("bundles") == store.names("refs") == store.names("leases") == []
    kept = len(store.names("blobs"))
    subprocess.run(["mount", "-o", "remount,size=32m", str(small)], check=True)
    report = copy_bundle(open_bundle(source), open_store(place), ref="big")
    assert report.kept_blobs == kept and report.moved_blobs == 4 - kept
    check_whole(store)
    assert read_all(place, "big") == report.bundle and store.names("partial") == []


def test_a_full_cache_and_a_full_place_for_an_export_say_so(source, small, s3, tmp_path, monkeypatch):
    remote = new_place("s3", tmp_path)
    copy_bundle(open_bundle(source), open_store(remote), ref="big")
    monkeypatch.setenv("NEURON_AOT_CACHE", str(small / "cache"))
    with pytest.raises(FullDiskError):
        read_all(remote, "big")
    with pytest.raises(FullDiskError):
        export_bundle(open_bundle(source), small / "bundle.tar")
    assert not list(small.glob("*.tar*")) and not list(small.glob(".bundle*"))
    subprocess.run(["mount", "-o", "remount,size=32m", str(small)], check=True)
    assert read_all(remote, "big")
