"""Signatures over bundle ids, policies, and hostile bundles and files: refused by name before anything is parsed."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from pathlib import Path

import pytest
from neuron_aot_runtime.contract.errors import ConfigError, IntegrityError, UntrustedError, UsageError
from neuron_aot_runtime.contract.layout import blob_path, bundle_path, is_store_path, signature_path
from neuron_aot_runtime.store import bundle as bundles
from neuron_aot_runtime.store import open_bundle
from neuron_aot_runtime.store.trust import key_id
from stores import PROCESSES, check_whole, make_bundle, with_artifacts

from neuron_aot.store import open_store
from neuron_aot.store.archive import export_bundle, import_bundle
from neuron_aot.store.signing import distrust_key, new_key, public_key, sign_bundle, trust_key
from neuron_aot.store.transfer import copy_bundle


@pytest.fixture
def store(tmp_path, compiler):
    return make_bundle(tmp_path / "source")


@pytest.fixture
def reference(store):
    return f"{store.location}@fake/demo"


@pytest.fixture
def policy(tmp_path, monkeypatch):
    """A policy that trusts the key ``ci``, in force."""
    file = tmp_path / "policy.json"
    trust_key(file, "ci", new_key(tmp_path / "ci.pem"))
    monkeypatch.setenv("NEURON_AOT_TRUST", str(file))
    return file


@pytest.fixture
def never_parsed(monkeypatch):
    """Fails when a manifest's bytes reach the parser."""

    def refuse(*args, **options):
        raise AssertionError("a refused bundle was parsed")

    monkeypatch.setattr(bundles, "parse_manifest", refuse)


def test_a_trusted_signature_opens_and_travels(store, reference, policy, tmp_path):
    bundle_id = json.loads(store.read("refs/fake/demo.json"))["bundle"]
    signature = sign_bundle(store, bundle_id, tmp_path / "ci.pem")
    sign_bundle(store, bundle_id, tmp_path / "ci.pem")
    assert signature.public_key == public_key(tmp_path / "ci.pem") and (tmp_path / "ci.pem").stat().st_mode & 0o77 == 0
    bundle = open_bundle(reference)
    assert bundle.signers == ("ci",)
    copy_bundle(bundle, open_store(str(tmp_path / "copy")), ref="x")
    assert open_bundle(f"{tmp_path / 'copy'}@x").signers == ("ci",)


def test_unsigned_and_signed_by_others_are_refused(store, reference, policy, tmp_path, never_parsed):
    with pytest.raises(UntrustedError, match="no trusted key has signed") as caught:
        open_bundle(reference)
    assert caught.value.exit_code == 25 and "neuron-aot sign" in caught.value.next_command
    new_key(tmp_path / "other.pem")
    sign_bundle(store, json.loads(store.read("refs/fake/demo.json"))["bundle"], tmp_path / "other.pem")
    with pytest.raises(UntrustedError, match="other keys"):
        open_bundle(reference)


def test_a_policy_may_allow_unsigned_bundles_but_no_forged_ones(store, reference, policy, tmp_path):
    Path(policy).unlink()
    trust_key(policy, "ci", public_key(tmp_path / "ci.pem"), require=False)
    bundle_id = open_bundle(reference).bundle_id
    signature = sign_bundle(store, bundle_id, tmp_path / "ci.pem")
    path = signature_path(bundle_id, key_id(signature.public_key))
    forged = base64.b64encode(bytes(64)).decode()
    store.backend.replace(path, signature.model_copy(update={"signature": forged}).model_dump_json().encode())
    with pytest.raises(UntrustedError, match="forged"):
        open_bundle(reference)


def test_an_old_signature_on_new_content_is_refused(store, reference, policy, tmp_path, compiler):
    old = json.loads(store.read("refs/fake/demo.json"))["bundle"]
    signature = sign_bundle(store, old, tmp_path / "ci.pem")
    other = make_bundle(tmp_path / "other", engine={"max_num_seqs": 1})
    new = json.loads(other.read("refs/fake/demo.json"))["bundle"]
    path = signature_path(new, key_id(signature.public_key))
    for moved in (signature, signature.model_copy(update={"bundle": new})):
        other.backend.replace(path, moved.model_dump_json().encode())
        with pytest.raises(UntrustedError, match="of another bundle"):
            open_bundle(f"{other.location}@fake/demo")
    # New content under the old, signed name
    store.backend.replace(bundle_path(old), other.read(bundle_path(new)))
    with pytest.raises(IntegrityError, match="not what its name says"):
        open_bundle(reference)


def test_replaced_data_with_a_replaced_checksum_needs_another_id(store, reference, policy, tmp_path):
    bundle = json.loads(store.read("refs/fake/demo.json"))["bundle"]
    sign_bundle(store, bundle, tmp_path / "ci.pem")
    manifest = json.loads(store.read(bundle_path(bundle)))
    with store.scratch() as directory:
        (directory / "evil").write_bytes(b"evil")
        digest, size = store.put_blob(directory / "evil")
    manifest["programs"][0]["artifact"] |= {"digest": digest, "size": size}
    store.backend.replace(bundle_path(bundle), json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(IntegrityError, match="not what its name says"):
        open_bundle(reference)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"keys": {"ci": "ed25519:AAAA"}}', b'{"keyz": {}}'])
def test_a_policy_that_cannot_be_read_is_never_skipped(reference, policy, content):
    policy.write_bytes(content)
    with pytest.raises(ConfigError):
        open_bundle(reference)
    policy.unlink()
    with pytest.raises(ConfigError):
        open_bundle(reference)


def test_keys_and_policies(tmp_path, policy):
    with pytest.raises(UsageError, match="exists already"):
        new_key(tmp_path / "ci.pem")
    (tmp_path / "no.pem").write_text("nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        public_key(tmp_path / "no.pem")
    with pytest.raises(ConfigError, match="not an ed25519 public key"):
        trust_key(policy, "x", "ed25519:AAAA")
    with pytest.raises(UsageError, match="does not list"):
        distrust_key(policy, "x")
    assert distrust_key(policy, "ci").keys == {}


def test_names_that_a_store_gives_and_no_others():
    good = [blob_path("sha256:" + "a" * 64), f"programs/{'b' * 64}.json", "refs/a/b.json", "history/a/b@/00000001.json"]
    bad = ["../x", "refs/../x.json", "/etc/passwd", "blobs/sha256/ab/" + "c" * 64, "programs/x.json", "refs/a", "tmp/x", "", "refs/.x.json"]  # fmt: skip
    assert all(map(is_store_path, good)) and not any(map(is_store_path, bad))


def test_export_and_import(store, reference, tmp_path, policy):
    sign_bundle(store, json.loads(store.read("refs/fake/demo.json"))["bundle"], tmp_path / "ci.pem")
    bundle = open_bundle(reference)
    export_bundle(bundle, tmp_path / "a.tar")
    export_bundle(bundle, tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        export_bundle(bundle, tmp_path / "a.tar")
    target = open_store(str(tmp_path / "target"))
    report = import_bundle(tmp_path / "a.tar", target, ref="air/gap")
    assert report.bundle == bundle.bundle_id and report.moved_blobs == 4
    check_whole(target)
    assert open_bundle(f"{target.location}@air/gap").signers == ("ci",)
    assert import_bundle(tmp_path / "a.tar", target).moved_blobs == 0


def members(file: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(file) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]


def named(name: str, **fields):
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member


HOSTILE = {
    "climbs": lambda items: [*items, (named("../../evil", size=1), b"x")],
    "absolute": lambda items: [*items, (named("/tmp/evil", size=1), b"x")],
    "link": lambda items: [(named(items[0][0].name, type=tarfile.SYMTYPE, linkname="/etc/passwd"), b""), *items[1:]],
    "hard link": lambda items: [
        *items,
        (named("blobs/sha256/aa/" + "a" * 64, type=tarfile.LNKTYPE, linkname="x"), b""),
    ],
    "twice": lambda items: [*items, items[0]],
    "a ref": lambda items: [*items, (named("refs/evil.json", size=1), b"x")],
    "absurd size": lambda items: [*items, (named(f"programs/{'a' * 64}.json", size=1 << 40), b"")],
    "other bytes": lambda items: [(items[0][0], bytes(len(items[0][1]))), *items[1:]],
    "blob missing": lambda items: items[1:],
    "no bundle": lambda items: items[:-1],
    "manifest changed": lambda items: [*items[:-1], (items[-1][0], items[-1][1].replace(b"cpu", b"gpu"))],
}


@pytest.mark.parametrize("how", HOSTILE)
def test_hostile_and_damaged_files_store_nothing(store, reference, tmp_path, how):
    export_bundle(open_bundle(reference), tmp_path / "good.tar")
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        for member, data in HOSTILE[how](members(tmp_path / "good.tar")):
            tar.addfile(member, io.BytesIO(data) if data else None)
    target = open_store(str(tmp_path / "target"))
    with pytest.raises((IntegrityError, UsageError)):
        import_bundle(tmp_path / "bad.tar", target, ref="x")
    for kind in ("blobs", "programs", "bundles", "refs", "tmp"):
        assert target.names(kind) == []
    assert not (tmp_path / "evil").exists() and not (tmp_path.parent / "evil").exists()


def test_a_file_that_is_cut_off_or_no_tar_stores_nothing(reference, tmp_path):
    export_bundle(open_bundle(reference), tmp_path / "good.tar")
    data = (tmp_path / "good.tar").read_bytes()
    target = open_store(str(tmp_path / "target"))
    for bad in (data[: len(data) // 2], b"nothing", b""):
        (tmp_path / "bad.tar").write_bytes(bad)
        with pytest.raises((IntegrityError, UsageError)):
            import_bundle(tmp_path / "bad.tar", target)
    assert target.names("bundles") == []


def _pull(reference: str, place: str) -> None:
    copy_bundle(open_bundle(reference), open_store(place), ref="x")


def test_a_program_key_that_is_its_blobs_digest_holds_nobody_up(store, tmp_path):
    """The writer of a program holds the lock of its key around those of its blobs."""
    bundle = with_artifacts(store, 1000, key=lambda digest: digest.removeprefix("sha256:"))
    pull = PROCESSES.Process(target=_pull, args=(f"{store.location}@{bundle}", str(tmp_path / "copy")))
    pull.start()
    pull.join(60)
    pull.kill()  # only one that waits for itself is still there
    assert pull.exitcode == 0
    check_whole(open_store(str(tmp_path / "copy")))
