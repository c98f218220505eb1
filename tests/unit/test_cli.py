"""The commands: data on stdout, talk on stderr, an exit code for each kind of error, no traceback for mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_toolchain import FAKE, write_recipe
from neuron_aot_runtime.contract.canonical import canonical_json, digest_bytes
from neuron_aot_runtime.contract.layout import blob_path, bundle_path, program_path
from neuron_aot_runtime.store import open_bundle

from neuron_aot.estimates import DEFAULT_MEMORY_MB
from neuron_aot.schedule.executor import LocalExecutor
from neuron_aot.schedule.memory import HostMemory


def test_compile_show_verify(run):
    first = run("compile", "recipe.yaml", "--ref", "fake/demo", "--json", "--jobs", "2")
    report = json.loads(first.stdout.splitlines()[-1])
    assert report.items() >= {"ref": "fake/demo", "programs": 4, "compiled": 4, "hits": 0}.items()
    assert len(report["bundle"]) == 64 and report["seconds"] > 0
    assert "4 to make" in first.stderr and first.stderr.count("  made in ") == 4 and "\x1b" not in first.stderr

    again = run("compile", "recipe.yaml", "--ref", "fake/demo")
    assert again.stdout == "./store@fake/demo\n" and "4 in the store, 0 to make" in again.stderr

    shown = json.loads(run("show", "./store@fake/demo", "--json").stdout)
    assert shown["bundle"] == report["bundle"] and len(shown["programs"]) == 4
    program = shown["programs"][0]
    assert (program["name"], program["phase"]) == ("prefill_s128_c128", "prefill")
    assert program["bucket"] == {"size": 128, "context": 128} and len(program["program_key"]) == 64
    assert program["artifact"]["digest"].startswith("sha256:") and program["artifact"]["size"] > 0
    table = run("show", "./store").stdout
    assert "decode_b2_c256" in table and report["bundle"] in table and "max_model_len 256" in table

    verified = json.loads(run("verify", "./store@fake/demo", "--json").stdout)
    assert verified["ok"] and verified["programs"] == 4 and verified["problems"] == []
    assert run("verify", "./store@fake/demo").stdout.endswith("4 programs verified: ok\n")
    assert json.loads(run("verify", "./store", "--recompute", "--json").stdout)["ok"]


def test_verify_names_all_that_is_wrong(run):
    run("compile", "recipe.yaml")
    programs = open_bundle("store").manifest.programs
    Path("store", blob_path(programs[0].artifact.digest)).write_bytes(b"x")
    Path("store", blob_path(programs[1].artifact.digest)).unlink()
    Path("store", program_path(programs[2].program_key)).unlink()
    result = run("verify", "store", "--json", code=6)
    report = json.loads(result.stdout)
    kinds = {problem["program"]: problem["error"] for problem in report["problems"]}
    assert not report["ok"] and kinds == {
        programs[0].name: "IntegrityError",
        programs[1].name: "NotFoundError",
        programs[2].name: "NotFoundError",
    }
    assert programs[0].artifact.digest in result.stderr


def test_recompute_finds_a_program_that_lowers_differently(run, monkeypatch):
    run("compile", "recipe.yaml")
    from neuron_aot_runtime.contract.errors import IntegrityError

    import neuron_aot.verify
    from neuron_aot.verify import recompute_program

    bundle = open_bundle("store")
    name = bundle.manifest.programs[0].name
    recompute_program("store", name, FAKE, print)
    monkeypatch.setattr(neuron_aot.verify.keys, "program_key", lambda *args, **options: "0" * 64)
    with pytest.raises(IntegrityError, match="lowers to another program"):
        recompute_program("store", name, FAKE, print)


def test_dry_run_writes_nothing(run):
    planned = json.loads(run("compile", "recipe.yaml", "--dry-run", "--json").stdout)
    assert planned["missing"] == 4 and len(planned["programs"][0]["request_key"]) == 64
    assert not Path("store").exists()
    assert "to make" in run("compile", "recipe.yaml", "--dry-run").stdout
    parts = [json.loads(run("compile", "recipe.yaml", "--dry-run", "--shard", part, "--json").stdout)["programs"]
             for part in ("1/2", "2/2")]  # fmt: skip
    assert sorted(item["name"] for part in parts for item in part) == sorted(
        item["name"] for item in planned["programs"]
    )
    assert all(len(part) == 2 for part in parts)


def test_dry_run_tells_the_memory_of_each_program_and_whether_the_compile_would_be_refused(run, monkeypatch):
    planned = json.loads(run("compile", "recipe.yaml", "--dry-run", "--json").stdout)
    needs = {item["name"]: item["estimated_memory_mb"] for item in planned["programs"]}
    assert set(needs.values()) == {DEFAULT_MEMORY_MB["cpu"]} and planned["refused"] == []

    small = HostMemory(total=1000, free=1000)
    monkeypatch.setattr(LocalExecutor, "memory", lambda self: small)
    planned = json.loads(run("compile", "recipe.yaml", "--dry-run", "--json").stdout)
    assert planned["refused"] == sorted(needs) and planned["host_memory_mb"] == 1000
    shown = run("compile", "recipe.yaml", "--dry-run").stdout
    assert "to make, 1500 MB" in shown and "refused without --force: 4 programs" in shown
    assert "more memory than" in run("compile", "recipe.yaml", code=8).stderr, "as was told"


def test_a_failed_compile(run, compiler):
    compiler(fail=["decode_b1_c256"])
    result = run("compile", "recipe.yaml", "--json", code=8)
    assert "decode_b1_c256  failed: the fake compiler refuses" in result.stderr
    assert "1 of 4 programs failed" in result.stderr and "the other 3 are kept" in result.stderr
    assert json.loads(result.stdout)["exit_code"] == 8


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["compile", "recipes.yaml"], 2, "did you mean recipe.yaml?"),
        (["compile", "recipe.yaml", "--ref", "../x"], 2, "not a ref name"),
        (["compile", "recipe.yaml", "--store", "recipe.yaml"], 2, "not a store"),
        (["compil", "recipe.yaml"], 2, "Did you mean 'compile'"),
        (["compile", "recipe.yaml", "--jbs", "2"], 2, "--jobs"),
        (["compile", "recipe.yaml", "--jobs", "0"], 2, "--jobs"),
        (["show", "nowhere@x"], 4, "there is no store"),
        (["verify", "./store@"], 2, "not a reference"),
    ],
)
def test_mistakes_are_told_without_a_traceback(run, arguments, code, told):
    result = run(*arguments, code=code)
    assert told in result.stderr and "Traceback" not in result.stderr and result.stdout == ""


@pytest.mark.parametrize(("version", "which"), [(1, "an earlier"), (99, "a later")])
def test_a_bundle_of_another_schema_version_is_told_with_what_to_do(run, version, which):
    """Version 1 is from before tensor parallelism."""
    run("compile", "recipe.yaml")
    manifest = json.loads(open_bundle("store").manifest.to_json()) | {"schema_version": version}
    data = canonical_json(manifest)
    bundle = digest_bytes(data).removeprefix("sha256:")
    Path("store", bundle_path(bundle)).write_bytes(data)
    for command in ("show", "verify"):
        told = run(command, f"store@{bundle}", code=6).stderr.replace("\n", " ")
        assert f"{which} version of neuron-aot" in told and f"schema version {version}" in told
        assert "compile the recipe again" in told and "Traceback" not in told


def test_errors_are_data_too(run):
    error = json.loads(run("show", "nowhere@x", "--json", code=4).stdout)
    assert error["error"] == "NotFoundError" and error["exit_code"] == 4 and error["next"]


def test_serve_takes_every_engine_argument_from_the_bundle(run, tmp_path, monkeypatch):
    write_recipe(tmp_path, engine={"enable_prefix_caching": False, "served_model_name": "fake", "seed": 1})
    bundle = json.loads(run("compile", "recipe.yaml", "--ref", "fake/demo", "--json").stdout)["bundle"]
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    told = json.loads(run("serve", "./store@fake/demo", "--dry-run", "--json", "--", "--port", "8001").stdout)
    command = told["command"]
    assert command[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"] and command[-2:] == ["--port", "8001"]
    for flag, value in (
        ("--model", str(tmp_path / "model")), ("--max-model-len", "256"), ("--served-model-name", "fake"),
        ("--num-gpu-blocks-override", "17"), ("--seed", "1"), ("--dtype", "bfloat16"),
    ):  # fmt: skip
        assert command[command.index(flag) + 1] == value
    assert "--no-enable-prefix-caching" in command
    assert told["environment"] == {"NEURON_COMPILED_ARTIFACTS": "./store@fake/demo", "VLLM_PLUGINS": "other,neuron_aot"}

    by_id = run("serve", f"store@{bundle}", "--dry-run").stdout
    assert str(tmp_path / "model") in by_id
    (tmp_path / "model").rename(tmp_path / "moved")
    assert "--model DIRECTORY" in run("serve", "store", "--dry-run", code=2).stderr
    assert "moved" in run("serve", "store", "--model", "moved", "--dry-run").stdout


def test_a_larger_limit_behind_serve_is_a_miss_that_names_the_programs(run):
    """Not a broken rule: the bundle's own buckets are no choice of the user's. Judged by what the plugin judges with."""
    run("compile", "recipe.yaml", "--ref", "fake/demo")
    for limit, missing in (("2", []), ("16", [f"decode_b{size}_c256" for size in (4, 8, 16)])):
        serve = ("serve", "store@fake/demo", "--dry-run", "--json", "--", "--max-num-seqs", limit)
        command = json.loads(run(*serve).stdout)["command"]
        code = 3 if missing else 0
        told = json.loads(run("coverage", "store@fake/demo", "--json", "--", *command, code=code).stdout)
        assert (told["missing"], told["misuse"]) == (missing, [])


def test_an_interrupt_tells_what_is_kept(run, monkeypatch):
    from neuron_aot import compiling, pipeline

    def interrupted(*args, **options):
        raise compiling.Interrupted(3, 4)

    monkeypatch.setattr(pipeline, "compile_recipe", interrupted)
    result = run("compile", "recipe.yaml", code=130)
    assert "3 of 4 programs are in the store" in result.stderr


def test_debug_shows_the_traceback(tmp_path):
    command = [sys.executable, "-c", "from neuron_aot.cli import main; main()"]
    environment = os.environ | {"NO_COLOR": "1"}
    for flags, shown in (([], False), (["--debug"], True)):
        ended = subprocess.run(
            [*command, *flags, "show", str(tmp_path / "x")],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert ("Traceback" in ended.stderr) is shown and "there is no store" in ended.stderr


def test_a_closed_pipe_is_no_error(run):
    run("compile", "recipe.yaml")
    code = "from neuron_aot.cli import main; main()"
    process = subprocess.Popen(
        f"{sys.executable} -c '{code}' show store --json | true", shell=True, stderr=subprocess.PIPE, text=True
    )
    assert "Traceback" not in process.communicate()[1]
