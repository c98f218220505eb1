"""The store: write-once, verified on every read, and whole at every instant, whoever is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from fake_toolchain import FAKE, write_recipe
from neuron_aot_runtime.contract.canonical import digest_bytes, digest_file
from neuron_aot_runtime.contract.errors import (
    AccessDeniedError,
    FullDiskError,
    IntegrityError,
    NotFoundError,
    StorageFaultError,
    UsageError,
)
from neuron_aot_runtime.contract.layout import blob_path, bundle_path, program_path
from neuron_aot_runtime.contract.manifest import Artifact, Bucket, Manifest
from neuron_aot_runtime.store import (
    ProgramRecord,
    Provenance,
    RefRecord,
    RequestRecord,
    open_bundle,
    parse_reference,
)
from neuron_aot_runtime.store.locks import hold_lock, try_lock
from neuron_aot_runtime.store.reader import storage_error

from neuron_aot.pipeline import compile_recipe
from neuron_aot.recipe import load_recipe
from neuron_aot.store import open_store
from neuron_aot.store.files import clean_litter, scratch

KEY, REQUEST = "a" * 64, "b" * 64
PROVENANCE = Provenance(built_at="2026-01-01T00:00:00+00:00", lower_ms=1, generate_ms=2, peak_memory_mb=3, versions={})


# Spawned: this process may have threads of libraries that do not survive a fork.
PROCESSES = multiprocessing.get_context("spawn")


def run_in_process(function, *arguments) -> int:
    """Call ``function`` in a process of its own; returns its exit code, negative for a signal."""
    process = PROCESSES.Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A manifest to publish variations of."""
    directory = tmp_path_factory.mktemp("template")
    os.environ["FAKE_COMPILER"] = str(directory / "compiler.json")
    (directory / "compiler.json").write_text("{}")
    store = open_store(str(directory / "store"))
    compile_recipe(load_recipe(write_recipe(directory)), store, FAKE, jobs=1)
    return open_bundle(str(store.root)).manifest


def put_blob(store, content: bytes) -> Artifact:
    with store.scratch() as directory:
        (directory / "artifact").write_bytes(content)
        digest, size = store.put_blob(directory / "artifact")
    return Artifact(format="fake", digest=digest, size=size)


def record(artifact: Artifact, **changed) -> ProgramRecord:
    fields = {"program_key": KEY, "artifact": artifact, "target": "cpu", "code_generator": {}, "provenance": PROVENANCE}
    return ProgramRecord(**(fields | changed))


def request(program_key=KEY) -> RequestRecord:
    return RequestRecord(
        request_key=REQUEST,
        program_key=program_key,
        phase="decode",
        bucket=Bucket(size=1, context=32),
        inputs=(),
        outputs=(),
    )


def manifest_of(template: Manifest, artifact: Artifact) -> Manifest:
    program = template.programs[0].model_copy(update={"program_key": KEY, "artifact": artifact})
    return template.model_copy(update={"programs": (program,)})


def write_all(store, template, content=b"content") -> str:
    """Every kind of write, in the order of a compile."""
    artifact = put_blob(store, content)
    stored = store.put_program(record(artifact)).record
    store.put_request(request())
    bundle = store.publish(manifest_of(template, stored.artifact))
    store.set_ref("a/b", RefRecord(bundle=bundle))
    return bundle


def check_whole(store) -> None:
    """No file with a final name is incomplete, and none names what is not there."""
    for path in store.names("blobs"):
        assert digest_bytes(store.read(path)).removeprefix("sha256:") == Path(path).name
    for path in store.names("programs"):
        assert store.is_whole(store.program(Path(path).stem).artifact)
    for path in store.names("requests"):
        assert store.program(store.request(Path(path).stem).program_key)
    for path in store.names("bundles"):
        bundle = open_bundle(f"{store.root}@{Path(path).stem}")
        assert all(bundle.artifact_path(program) for program in bundle.manifest.programs)
    for path in store.names("refs"):
        open_bundle(f"{store.root}@{path.removeprefix('refs/').removesuffix('.json')}")


def test_a_writer_killed_at_any_step_leaves_nothing_that_hits(tmp_path, template):
    """A real process is killed before the n-th file operation, for every n; then another writer finishes the work."""
    assert run_in_process(_kill_at_every_step, tmp_path, template) == 0


def _kill_at_every_step(directory: Path, template) -> None:
    steps = 0
    while True:
        store = open_store(str(directory / f"store{steps}"))
        if (child := os.fork()) == 0:
            _write_and_die(steps, store, template)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        check_whole(store)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        store.clean_litter()
        assert store.names("tmp") == []
        write_all(store, template)
        check_whole(store)
        assert open_bundle(f"{store.root}@a/b").bundle_id
        steps += 1
    assert steps >= 20


def _write_and_die(step: int, store, template) -> None:
    """Do every kind of write, unless there are more file operations than ``step``."""
    left = [step]

    def counted(function):
        def call(*args, **options):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return function(*args, **options)

        return call

    for name in ("link", "replace", "fsync", "mkdir", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    write_all(store, template)


def test_the_first_writer_wins_and_the_loser_adopts(store):
    first, second = put_blob(store, b"first"), put_blob(store, b"second")
    assert not store.put_program(record(first)).adopted
    again = store.put_program(record(second))
    assert again.adopted and again.record.artifact == first
    same = store.put_program(record(first, provenance=PROVENANCE.model_copy(update={"lower_ms": 99})))
    assert not same.adopted and store.program(KEY).provenance.lower_ms == 1


def test_a_record_without_its_blob_is_refused_and_a_broken_winner_replaced(store):
    ghost = Artifact(format="fake", digest=digest_bytes(b"ghost"), size=5)
    with pytest.raises(IntegrityError):
        store.put_program(record(ghost))
    first, second = put_blob(store, b"first"), put_blob(store, b"second")
    store.put_program(record(first))
    (store.root / blob_path(first.digest)).unlink()
    assert store.put_program(record(second)).record.artifact == second == store.program(KEY).artifact


def test_an_existing_blob_is_verified_and_healed(store):
    artifact = put_blob(store, b"content")
    path = store.root / blob_path(artifact.digest)
    path.write_bytes(b"CONTENT")
    assert not store.is_whole(artifact)
    assert put_blob(store, b"content") == artifact and path.read_bytes() == b"content"


def test_a_request_that_lowers_differently_is_an_error(store):
    store.put_request(request())
    store.put_request(request())
    with pytest.raises(IntegrityError, match="not deterministic"):
        store.put_request(request("c" * 64))


def test_publishing_verifies_everything_first(store, template):
    artifact = put_blob(store, b"content")
    manifest = manifest_of(template, artifact)
    with pytest.raises(NotFoundError):
        store.publish(manifest)
    store.put_program(record(artifact))
    (store.root / blob_path(artifact.digest)).write_bytes(b"CONTENT")
    with pytest.raises(IntegrityError):
        store.publish(manifest)
    assert not store.names("bundles")
    with pytest.raises(NotFoundError):
        store.set_ref("x", RefRecord(bundle="d" * 64))
    put_blob(store, b"content")
    assert store.publish(manifest) == store.publish(manifest) == manifest.bundle_id


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
def test_a_damaged_artifact_is_named_and_never_returned(store, template, damage):
    write_all(store, template)
    bundle = open_bundle(f"{store.root}@a/b")
    (program,) = bundle.manifest.programs
    path = bundle.artifact_path(program)
    data = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes({"flip": b"\xff" + data[1:], "truncate": data[:-1], "empty": b""}[damage])
    with pytest.raises(NotFoundError if damage == "remove" else IntegrityError) as caught:
        bundle.artifact_path(program)
    text = str(caught.value)
    assert program.artifact.digest in text and program.name in text and "neuron-aot compile" in text


@pytest.mark.parametrize("harm", ["write", "replace", "touch", "remove"])
def test_a_verified_artifact_is_read_again_when_anything_about_its_file_changed(store, template, harm, monkeypatch):
    write_all(store, template)
    bundle = open_bundle(f"{store.root}@a/b")
    (program,) = bundle.manifest.programs
    path, read = bundle.artifact_path(program), []
    monkeypatch.setattr(
        "neuron_aot_runtime.store.bundle.digest_file", lambda path: read.append(path) or digest_file(path)
    )
    bundle.check_artifact(program)
    assert not read
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 10**9))
    bundle.check_artifact(program)
    assert len(read) == 1, "it is what it was, and one knows only after reading"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    if harm == "write":
        path.write_bytes(bytes(len(path.read_bytes())))
    elif harm == "replace":
        (path.parent / "other").write_bytes(bytes(path.stat().st_size))
        os.replace(path.parent / "other", path)
    elif harm == "remove":
        path.unlink()
    if harm != "remove":
        os.utime(path, ns=times)  # whoever harms may set the times back
    if harm == "touch":
        bundle.check_artifact(program)
        assert len(read) == 2
        return
    with pytest.raises(NotFoundError if harm == "remove" else IntegrityError):
        bundle.check_artifact(program)
    with pytest.raises(NotFoundError if harm == "remove" else IntegrityError):
        bundle.artifact_path(program)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"\x00"])
def test_a_damaged_manifest_is_named(store, template, damage):
    bundle = write_all(store, template)
    (store.root / bundle_path(bundle)).write_bytes(damage)
    with pytest.raises(IntegrityError, match=bundle):
        open_bundle(f"{store.root}@a/b")


def test_a_manifest_of_another_bundle_is_refused(store, template):
    bundle = write_all(store, template)
    path = store.root / bundle_path(bundle)
    other = store.root / bundle_path("d" * 64)
    other.write_bytes(path.read_bytes())
    with pytest.raises(IntegrityError, match="not what its name says"):
        open_bundle(f"{store.root}@{'d' * 64}")
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(IntegrityError, match="not what its name says"):
        open_bundle(f"{store.root}@{bundle}")


@pytest.mark.parametrize("path", ["refs/a/b.json", program_path(KEY)])
def test_a_damaged_record_is_named(store, template, path):
    write_all(store, template)
    (store.root / path).write_bytes(b'{"bundle": "../../etc"}')
    with pytest.raises(IntegrityError, match=path):
        open_bundle(f"{store.root}@a/b") if path.startswith("refs") else store.program(KEY)


def test_references(tmp_path, store, template, monkeypatch):
    bundle = write_all(store, template)
    for text in (str(store.root), f"{store.root}@a/b", f"{store.root}@{bundle}"):
        assert open_bundle(text).bundle_id == bundle
    odd = tmp_path / "me@home" / "store"
    odd.parent.mkdir()
    store.root.rename(odd)
    for text in (str(odd), f"{odd}@a/b"):
        assert open_bundle(text).bundle_id == bundle
    monkeypatch.chdir(odd.parent)
    assert open_bundle("store@a/b").bundle_id == bundle
    assert str(parse_reference("./store@a/b")) == "./store@a/b"


@pytest.mark.parametrize("text", ["", "@x", "store@", "store@../x", "store@a//b", "store@-x"])
def test_malformed_references(text):
    with pytest.raises(UsageError):
        parse_reference(text)


def test_what_a_reference_does_not_find_is_told(store, template, tmp_path):
    with pytest.raises(NotFoundError, match="there is no store"):
        open_bundle(str(tmp_path / "nowhere"))
    store.root.mkdir()
    with pytest.raises(NotFoundError, match="holds no bundle"):
        open_bundle(str(store.root))
    bundle = write_all(store, template)
    with pytest.raises(NotFoundError) as caught:
        open_bundle(f"{store.root}@a/c")
    assert caught.value.found == "a/b"
    with pytest.raises(NotFoundError, match="1 other bundles"):
        open_bundle(f"{store.root}@{'e' * 64}")
    for malformed in ("s3://Bucket!@a/b", "s3://bucket/../x@a/b", "nonsense://x@a/b"):
        with pytest.raises(UsageError):
            open_bundle(malformed)
    artifact = put_blob(store, b"other")
    store.put_program(record(artifact, program_key="f" * 64))
    other = manifest_of(template, artifact)
    other = other.model_copy(
        update={"programs": (other.programs[0].model_copy(update={"program_key": "f" * 64}),), "target": "trn2"}
    )
    second = store.publish(other)
    assert open_bundle(str(store.root)).bundle_id == bundle  # refs decide before bundles
    store.set_ref("z", RefRecord(bundle=second))
    with pytest.raises(UsageError, match="say which"):
        open_bundle(str(store.root))


def test_absent_denied_and_failed_are_different():
    assert isinstance(storage_error(FileNotFoundError(2, "x"), "p", "s"), NotFoundError)
    assert isinstance(storage_error(PermissionError(13, "x"), "p", "s"), AccessDeniedError)
    assert isinstance(storage_error(OSError(30, "read-only"), "p", "s"), AccessDeniedError)
    assert isinstance(storage_error(OSError(28, "no space left"), "p", "s"), FullDiskError)
    assert type(storage_error(OSError(5, "input/output error"), "p", "s")) is StorageFaultError


def test_denied_is_not_a_miss(store, template):
    write_all(store, template)
    os.chmod(store.root / "programs", 0)
    os.chmod(store.root.parent, 0o755)
    ended = run_in_process(_look_as_another_user, store)
    os.chmod(store.root / "programs", 0o755)
    assert ended == 0


def _look_as_another_user(store) -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)
    with pytest.raises(AccessDeniedError):
        store.program(KEY)


def test_litter_of_the_dead_goes_and_work_of_the_living_stays(store):
    store.root.mkdir()
    assert run_in_process(_die_in_scratch, store) == -signal.SIGKILL
    (store.root / "locks").mkdir()
    (store.root / "locks" / "dead.lock").touch()
    with scratch(store.root) as mine, store.lock(KEY):
        (mine / "artifact").write_bytes(b"x")
        assert clean_litter(store.root) == 1
        assert (mine / "artifact").exists()
        assert store.names("locks") == [f"locks/{KEY}.lock"]
    assert store.names("tmp") == store.names("locks") == []


def _die_in_scratch(store) -> None:
    with scratch(store.root) as directory:
        (directory / "half").write_bytes(b"x")
        os.kill(os.getpid(), signal.SIGKILL)


def _hold(path: Path, held) -> None:
    with hold_lock(path):
        held.set()
        signal.pause()


def test_a_lock_dies_with_its_process_and_leaves_no_file(tmp_path):
    path = tmp_path / "locks" / "k.lock"
    waited = []
    held = PROCESSES.Event()
    holder = PROCESSES.Process(target=_hold, args=(path, held))
    holder.start()
    assert held.wait(20)
    assert try_lock(path) is None
    holder.kill()
    holder.join()
    with hold_lock(path, lambda: waited.append(1)):
        assert try_lock(path) is None
    assert not path.exists() and waited == []


def test_a_file_system_without_links_works_too(store, template, monkeypatch):
    def refuse(*args, **options):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    write_all(store, template)
    check_whole(store)
    assert store.put_program(record(put_blob(store, b"second"))).adopted
