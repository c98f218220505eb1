"""The commands of stores, on a real S3 server where it matters: data on stdout, talk on stderr, an exit code a kind."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
from commands import answer, invoke
from neuron_aot_runtime.contract.layout import blob_path
from neuron_aot_runtime.store import open_bundle
from stores import make_bundle, new_place

from neuron_aot.store import open_store
from neuron_aot.store.gc import plan_gc


@pytest.fixture
def run(tmp_path, monkeypatch, compiler):
    monkeypatch.chdir(tmp_path)
    make_bundle(tmp_path)
    return invoke


def test_the_ci_recipe(run, s3, tmp_path):
    """Compile in CI, push as a candidate, promote, serve, roll back."""
    remote = new_place("s3", tmp_path)
    pushed = answer(run("push", "store@fake/demo", remote, "--ref", "fake/candidate", "--json"))
    assert pushed["moved"]["blobs"] == 4 and pushed["kept"]["blobs"] == 0 and pushed["ref"] == "fake/candidate"
    first = pushed["bundle"]
    assert answer(run("refs", "set", f"{remote}@fake/prod", "fake/candidate", "--json"))["bundle"] == first
    make_bundle(tmp_path, engine={"max_num_seqs": 1, "num_gpu_blocks_override": 17})
    second = answer(run("push", "store@fake/demo", remote, "--ref", "fake/candidate", "--json"))["bundle"]
    assert second != first
    run("refs", "set", f"{remote}@fake/prod", second)
    assert open_bundle(f"{remote}@fake/prod").bundle_id == second
    assert run("rollback", f"{remote}@fake/prod").stdout == f"{first}\n"
    log = answer(run("refs", "log", f"{remote}@fake/prod", "--json"))
    assert [item["bundle"] for item in log["history"]] == [first, second, first] and log["bundle"] == first
    assert second in run("refs", "log", f"{remote}@fake/prod").stdout
    differences = answer(run("diff", f"{remote}@fake/prod", f"{remote}@fake/candidate", "--json"))
    assert {"field": "engine.max_num_seqs", "a": 2, "b": 1} in differences["differences"]
    assert "engine.max_num_seqs" in run("diff", f"{remote}@fake/prod", f"{remote}@fake/candidate").stdout
    assert answer(run("diff", f"{remote}@fake/prod", f"{remote}@{first}", "--json"))["same"]
    listed = answer(run("ls", remote, "--json"))["bundles"]
    assert [(item["refs"], item["state"]) for item in listed] == [
        (["fake/candidate"], "unverified"),
        (["fake/prod"], "unverified"),
    ]
    pulled = answer(run("pull", f"{remote}@fake/prod", "mirror", "--json"))
    assert pulled["bundle"] == first and answer(run("verify", "mirror", "--all", "--json"))["ok"]
    assert run("verify", f"{remote}@fake/prod").stdout.endswith("verified: ok\n")
    run("refs", "rm", f"{remote}@fake/candidate")
    run("show", f"{remote}@fake/candidate", code=4)


def test_damage_is_listed_and_repaired(run, tmp_path):
    run("push", "store@fake/demo", "copy")
    program = open_bundle("copy").manifest.programs[0]
    path = Path("copy", blob_path(program.artifact.digest))
    path.write_bytes(bytes(program.artifact.size))
    assert answer(run("ls", "copy", "--json"))["bundles"][0]["state"] == "unverified"
    listed = run("ls", "copy", "--verify", "--json", code=6)
    assert answer(listed)["bundles"][0]["state"] == "damaged" and program.name in listed.stderr
    found = run("verify", "copy", "--all", "--json", code=6)
    assert answer(found)["problems"][0]["path"] == blob_path(program.artifact.digest) and "zeroed" in found.stderr
    path.unlink()
    assert answer(run("ls", "copy", "--json", code=4))["bundles"][0]["state"] == "incomplete"
    repaired = run("verify", "copy", "--repair", "store", "--json")
    assert answer(repaired)["ok"] and "repaired from store" in repaired.stderr
    assert answer(run("ls", "copy", "--verify", "--json"))["bundles"][0]["state"] == "healthy"


def test_gc_and_purge(run, tmp_path):
    first = open_bundle("store").bundle_id
    make_bundle(tmp_path, engine={"max_num_seqs": 1, "num_gpu_blocks_override": 17})
    assert answer(run("gc", "store", "--json"))["removed"] == []  # younger than the grace period
    kept = answer(run("gc", "store", "--grace-hours", "0", "--keep-last", "2", "--dry-run", "--json"))
    assert kept["removed"] == [] and kept["kept_bytes"] > 0
    planned = answer(run("gc", "store", "--grace-hours", "0", "--dry-run", "--json"))
    assert f"bundles/{first}.json" in [item["path"] for item in planned["removed"]] and planned["bytes"] > 0
    assert open_bundle(f"store@{first}")
    removed = answer(run("gc", "store", "--grace-hours", "0", "--json"))
    assert removed["removed"] == planned["removed"]
    assert answer(run("verify", "store", "--all", "--json"))["ok"]
    assert plan_gc(open_store("store"), grace=0).doomed == ()
    bundle = open_bundle("store")
    assert "in use" in run("purge", "store", bundle.bundle_id, code=2).stderr
    key = bundle.manifest.programs[0].program_key
    assert bundle.bundle_id[:16] in run("purge", "store", key, code=2).stderr
    gone = answer(run("purge", "store", key, "--force", "--json"))["removed"]
    assert {item["path"].partition("/")[0] for item in gone} == {"requests", "programs", "blobs"}
    assert answer(run("ls", "store", "--json", code=4))["bundles"][0]["state"] == "incomplete"
    run("purge", "store", key, code=4)
    run("refs", "rm", "store@fake/demo")
    run("purge", "store", bundle.bundle_id)
    assert answer(run("ls", "store", "--json"))["bundles"] == []


def test_sign_keys_and_policy(run, tmp_path, monkeypatch):
    public = run("keys", "new", "ci.pem").stdout.strip()
    assert run("keys", "show", "ci.pem").stdout.strip() == public
    run("keys", "trust", "ci", public, "--policy", "policy.json")
    assert answer(run("keys", "list", "--policy", "policy.json", "--json"))["keys"] == {"ci": public}
    monkeypatch.setenv("NEURON_AOT_TRUST", str(tmp_path / "policy.json"))
    assert "neuron-aot sign" in run("show", "store", code=25).stderr
    run("verify", "store@fake/demo", code=25)
    run("sign", "store@fake/demo", "--key", "ci.pem")
    assert answer(run("ls", "store", "--json"))["bundles"][0]["signatures"]
    run("show", "store")
    run("keys", "distrust", "ci")
    run("show", "store", code=25)
    run("sign", "store@fake/demo", "--key", "nothing.pem", code=2)


def test_export_and_import(run):
    bundle = run("export", "store@fake/demo", "bundle.tar").stdout.strip()
    assert answer(run("import", "bundle.tar", "other", "--ref", "a/b", "--json"))["bundle"] == bundle
    assert run("export", "store@fake/demo", "bundle.tar", code=2).stderr.startswith("error: bundle.tar exists")
    run("import", "nothing.tar", "other", code=4)


def test_doctor(run, s3):
    told = answer(run("doctor", "s3://bucket/x", "--json"))
    assert {item["name"] for item in told["settings"]} >= {"cache", "offline", "aws region", "aws credentials"}
    assert [step["ok"] for step in told["steps"]] == [True] * 4 and told["versions"]["obstore"]
    run("doctor", "s3://no-such-bucket/x", code=22)
    assert "writer-secret" not in run("doctor", "s3://bucket/x").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["push", "store@nope", "copy"], 4, "no ref"),
        (["push", "store", "copy", "--ref", "../x"], 2, "not a ref name"),
        (["push", "store", "nonsense://x"], 2, "not a kind of store"),
        (["pull", "nowhere@x", "copy"], 4, "there is no store"),
        (["ls", "nowhere"], 4, "there is no store"),
        (["gc", "nowhere"], 4, "there is no store"),
        (["gc", "store", "--keep-last", "0"], 2, "--keep-last"),
        (["purge", "store", "x"], 2, "neither a bundle id nor a program key"),
        (["refs", "set", "store", "x"], 2, "does not name a ref"),
        (["rollback", "store@fake/demo"], 2, "never meant another bundle"),
        (["ls", "s3://Not/a/bucket"], 2, "not a place in S3"),
    ],
)
def test_mistakes_are_told(run, arguments, code, told):
    assert told in run(*arguments, code=code).stderr
    assert not Path("copy").exists()


def neff(payload: bytes) -> bytes:
    head = struct.pack("<QQQQQ128s", 2, 1024, len(payload), 2, 0, b"2.21.0+1")
    return head + bytes(1024 - len(head)) + payload


def test_import_cache(run, tmp_path):
    module = b"\x0a\x04name" + b"\x12\x04main" + b"\x1a\x03abc"
    cache = tmp_path / "cache-of-another" / "neuronxcc-2"
    entries = {
        "MODULE_1": {
            "model.neff": neff(b"one"),
            "model.hlo_module.pb": module,
            "compile_flags.json": b'["--target=trn1"]',
        },
        "renamed": {"a": neff(b"two"), "b": gzip.compress(module + b"\x1a\x00"), "model.done": b""},
        "MODULE_same": {"x.neff": neff(b"one"), "y": module, "z": b'["--target=trn1"]', "lock": b"pid 1"},
        "MODULE_cut": {"model.neff": neff(b"three")[:-1], "model.hlo_module.pb": module},
        "MODULE_empty": {"model.neff": b"", "model.hlo_module.pb": module},
        "MODULE_failed": {"model.log": b"error", "model.hlo_module.pb": module},
    }
    for folder, files in entries.items():
        (cache / folder).mkdir(parents=True)
        for name, data in files.items():
            (cache / folder / name).write_bytes(data)
    told = answer(run("import-cache", str(cache), "adopted", "--json", code=6))
    adopted = {Path(item["folder"]).name: item for item in told["adopted"]}
    assert set(adopted) == {"MODULE_1", "renamed", "MODULE_same"} and adopted["MODULE_1"]["target"] == "trn1"
    assert adopted["MODULE_same"]["known"] and adopted["MODULE_same"]["digest"] == adopted["MODULE_1"]["digest"]
    assert {Path(item["folder"]).name for item in told["refused"]} == {"MODULE_cut", "MODULE_empty"}
    store = open_store("adopted")
    assert len(store.names("programs")) == 2
    assert answer(run("verify", "adopted", "--all", "--json"))["ok"]
    run("import-cache", "store/refs", "adopted", code=4)
    run("import-cache", "nowhere", "adopted", code=4)
