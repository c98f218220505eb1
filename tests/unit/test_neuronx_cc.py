"""The neuronx-cc code generator: flags, identity, and every way in which a compile can end, on the simulator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_toolchain import fake_family, fake_lowering_identity, write_recipe
from neuron_aot_runtime.contract.errors import CompileError, UsageError
from neuron_aot_runtime.device.neff import read_neff

from neuron_aot.codegen import CompilerError, code_generator
from neuron_aot.codegen.flags import merge_flags
from neuron_aot.codegen.ncc_errors import CODES, explain, find_code, says_out_of_memory
from neuron_aot.lower.neff_names import name_tensors
from neuron_aot.make import Toolchain
from neuron_aot.pipeline import compile_recipe, make_plan
from neuron_aot.program import LoweredProgram
from neuron_aot.recipe import load_recipe
from neuron_aot.store import open_store
from neuron_aot.targets import NEURON_TARGETS, CompileOptions

TRN1, TRN2 = NEURON_TARGETS["trn1"], NEURON_TARGETS["trn2"]


def identity(target=TRN2, **sources) -> str:
    return merge_flags(target, **sources).identity()


@pytest.mark.parametrize(
    "same",
    [
        {"environment": "-O1 --lnc=1"},
        {"environment": "--lnc 1 --optlevel=1"},
        {"environment": "--logical-nc-config 1 -O 1 --verbose info"},
        {"recipe": ("--optlevel", "1"), "environment": "--logical-nc-config=1"},
        {"recipe": ("-O1",), "environment": "--optlevel 1", "lnc": 1},
        {"recipe": ("-O2", "-O1", "--target", "trn2", "--framework=XLA"), "lnc": 1},
        {"environment": "--auto-cast none --model-type=transformer -O1", "lnc": 1},
    ],
)
def test_order_and_spelling_of_flags_do_not_matter(same):
    assert identity(**same) == "--auto-cast none --logical-nc-config 1 --model-type transformer --optlevel 1"


def test_meaning_of_flags_matters():
    others = [
        identity(), identity(lnc=1), identity(environment="-O1"), identity(environment="--auto-cast all"),
        identity(environment="--enable-fast-loading-neuron-binaries"), identity(environment="--new-option 3"),
        identity(environment="--new-option 4"), identity(environment="--new-option 3 --new-option 4"),
        identity(environment="--new-option 4 --new-option 3"), identity(environment="--internal-x='--a --b'"),
    ]  # fmt: skip
    assert len(set(others)) == len(others)
    assert "--internal-x=--a --b" in merge_flags(TRN2, environment="--internal-x='--a --b'").arguments()


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        ({"recipe": ("-O1",), "environment": "-O3"}, "disagree about --optlevel"),
        ({"environment": "--lnc 1", "lnc": 2}, "disagree about --logical-nc-config"),
        ({"environment": "--target trn1"}, "--target cannot be a compiler flag"),
        ({"recipe": ("--output", "x")}, "--output cannot be a compiler flag"),
        ({"environment": "--cache_dir=/x"}, "neuron-aot compiles into --store"),
        ({"environment": "--retry_failed_compilation"}, "--retry-failed"),
        ({"environment": "model.pb"}, "must start with a dash"),
        ({"environment": "--x 'y"}, "cannot be split"),
        ({"environment": "--lnc many"}, "wants a number"),
        ({"lnc": 3}, "NCC_EARG001"),
    ],
)
def test_flags_that_cannot_be_are_refused(sources, told):
    with pytest.raises(UsageError, match=told):
        merge_flags(TRN2, **sources)


def test_large_logical_cores_are_refused_on_trn1():
    with pytest.raises(UsageError, match="NCC_EARG001"):
        merge_flags(TRN1, environment="--lnc 2")


def test_the_cpu_target_takes_no_compiler_flags():
    with pytest.raises(UsageError, match="neither"):
        code_generator("cpu", CompileOptions(lnc=2))


# The compiler


def small_hlo(size: int = 4) -> bytes:
    import jax.numpy as jnp
    from neuron_aot_runtime.contract.manifest import TensorSpec

    from neuron_aot.lower.hlo import lower_to_hlo

    specs = [
        TensorSpec(name="w", role="param", shape=(8,), dtype="float32"),
        TensorSpec(name="k", role="state", shape=(8,), dtype="float32"),
        TensorSpec(name="ids", role="input", shape=(size,), dtype="int32"),
    ]
    hlo, _ = lower_to_hlo(lambda w, k, ids: (w.sum() + ids.sum().astype(jnp.float32), k + w), specs, {1: 1})
    return name_tensors(hlo, ["w", "k", "ids"], ["logits", "k"])


@pytest.fixture(scope="module")
def hlo():
    return small_hlo()


def generator(target="trn2", **options):
    return code_generator(target, CompileOptions(**options))


def test_a_compile_in_its_own_folder_with_the_documented_command_line(simulator, hlo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    (tmp_path / "out").mkdir()
    kept = generator(flags=("-O1",)).generate(hlo, tmp_path / "out" / "artifact")
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "out"])  # no litter where we are
    neff = read_neff(tmp_path / "out" / "artifact")
    assert neff.header.core_size == 2 and neff.subgraphs == ("sg00",)
    assert kept["hlo"].read_bytes() == hlo and "neuronx-cc 2.99" in kept["log"].read_text()
    assert str(tmp_path) not in kept["log"].read_text()
    (command,) = simulator.commands()
    assert command == [
        "compile", "model.hlo_module.pb", "--framework", "XLA", "--target", "trn2", "--auto-cast", "none",
        "--logical-nc-config", "2", "--model-type", "transformer", "--optlevel", "1",
        "--logfile", "compiler.log", "--output", "model.neff",
    ]  # fmt: skip


FAULTS = {
    "kill": ("was killed by SIGKILL, which usually means that the host ran out of memory", False),
    "terminate": ("was killed by SIGTERM", False),
    "oom": ("ran out of host memory", False),
    "empty": ("did not write a whole NEFF", False),
    "truncated": ("did not write a whole NEFF", False),
    "garbage": ("did not write a whole NEFF", False),
    "wrong-lnc": ("did not write a whole NEFF", False),
    "crash": ("failed with exit code 70 and no error code", False),
    "NCC_EVRF009": ("NCC_EVRF009: the tensors do not fit device memory", True),
    "NCC_EXYZ123": ("NCC_EXYZ123: the compiler refuses the program", True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_its_error_and_leaves_no_artifact(simulator, hlo, tmp_path, fault):
    simulator.tell(faults={"*": fault})
    (tmp_path / "out").mkdir()
    with pytest.raises(CompilerError) as caught:
        generator().generate(hlo, tmp_path / "out" / "artifact")
    told, remembered = FAULTS[fault]
    assert told in str(caught.value) and caught.value.remember is remembered
    assert caught.value.next_command and caught.value.log.read_text().startswith("$ neuronx-cc compile")
    assert not (tmp_path / "out" / "artifact").exists()
    if fault in ("kill", "oom"):
        assert "its peak memory was" in str(caught.value) and "--jobs" in caught.value.next_command


def test_a_compile_that_takes_too_long_is_stopped(simulator, hlo, tmp_path):
    simulator.tell(faults={"*": "slow:60"})
    started = time.monotonic()
    with pytest.raises(CompilerError, match="took longer than 1 s") as caught:
        generator(timeout=1).generate(hlo, tmp_path / "artifact")
    assert time.monotonic() - started < 20 and not caught.value.remember
    assert "NEURON_LIBTORCH_COMPILATION_TIMEOUT" in caught.value.next_command


def test_the_compiler_ends_with_its_worker(simulator, hlo, tmp_path):
    simulator.tell(faults={"*": "slow:600"})
    (tmp_path / "hlo").write_bytes(hlo)
    code = (
        "from pathlib import Path; from neuron_aot.codegen import code_generator; "
        f"code_generator('trn2').generate(Path({str(tmp_path / 'hlo')!r}).read_bytes(), Path({str(tmp_path / 'a')!r}))"
    )
    worker = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not simulator.runs and time.monotonic() < deadline:
        time.sleep(0.1)
    (compiler,) = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == worker.pid]
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    while _parent(compiler) is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _parent(compiler) is None


def _parent(pid) -> int | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, parent, *_ = file.read().rpartition(")")[2].split()
            return None if state == "Z" else int(parent)
    except OSError:
        return None


def test_the_simulator_refuses_what_the_documented_rules_refuse(simulator, hlo, tmp_path):
    """The compiler's own refusal, not our preflight's: 3 would be caught by neither flags nor preflight."""
    done = subprocess.run(
        ["neuronx-cc", "compile", "x", "--framework", "XLA", "--target", "trn1", "--lnc", "2"], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 70 and "NCC_EARG001" in done.stderr


def test_the_version_is_in_the_identity_and_asked_for_once(simulator, monkeypatch):
    from neuron_aot.codegen import neuronx_cc

    first = generator().identity()
    assert first == {
        "compiler": "neuronx-cc", "version": "2.99.7001.0+simulator", "logical_core_size": "2",
        "flags": "--auto-cast none --logical-nc-config 2 --model-type transformer --optlevel 2",
    }  # fmt: skip
    neuronx_cc._version_of.cache_clear()  # as a new process
    monkeypatch.setattr(subprocess, "run", None)
    assert generator().identity() == first
    monkeypatch.undo()


def test_another_version_of_the_compiler_is_noticed(simulator):
    first = generator().identity()
    simulator.tell(version="3.0.1")
    os.utime(simulator.folder / "neuronx-cc", (1, 1))  # a new installation
    assert generator().identity()["version"] == "3.0.1" != first["version"]


def test_without_a_compiler_the_identity_says_so_and_compiling_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    made = generator()
    assert made.identity()["version"] == "absent"
    with pytest.raises(CompileError, match="not on the PATH") as caught:
        made.check()
    assert "Neuron SDK" in caught.value.next_command


# Error codes


def test_codes_are_found_and_explained():
    text = "WARNING NCC_WSYN001 x\n2026 ERROR [NCC_IBIR158] internal\n[NCC_EVRF007] too many"
    assert find_code(text) == "NCC_EVRF007" and find_code("NCC_IBIR158: y") == "NCC_IBIR158"
    assert find_code("NCC_WSYN001 and nothing else") is None
    assert all(meaning and change for meaning, change in CODES.values())
    assert "internal error" in explain("NCC_IBIR158")[0]
    assert says_out_of_memory("terminate called after throwing an instance of 'std::bad_alloc'")
    assert says_out_of_memory("subprocess exited with signal 9") and not says_out_of_memory(
        "NCC_EOOM001: out of memory"
    )


# The whole path: four programs, real workers, real store


def lower_small(plan, definition, layout, **options) -> LoweredProgram:
    _, inputs, outputs = definition
    return LoweredProgram(hlo=small_hlo(plan.bucket.size + plan.bucket.context), inputs=inputs, outputs=outputs)


TOOLCHAIN = Toolchain(family=fake_family, lower=lower_small, lowering_identity=fake_lowering_identity)
TAGS = {
    "prefill_s128_c128": "ids_256",
    "prefill_s128_c256": "ids_384",
    "decode_b1_c256": "ids_257",
    "decode_b2_c256": "ids_258",
}


def test_one_refused_program_is_remembered_and_the_others_are_kept(simulator, tmp_path):
    recipe = load_recipe(write_recipe(tmp_path, engine={"num_gpu_blocks_override": 20}), target="trn2")
    store = open_store(str(tmp_path / "store"))
    simulator.tell(faults={TAGS["decode_b1_c256"]: "NCC_EVRF009"})

    def fails(**options) -> str:
        with pytest.raises(CompileError) as caught:
            compile_recipe(recipe, store, TOOLCHAIN, ref="x", jobs=2, **options)
        assert caught.value.exit_code == 8 and not list((tmp_path / "store").glob("bundles/*"))
        return str(caught.value)

    first = fails()
    assert "1 of 4 programs failed" in first and "decode_b1_c256" in first and "NCC_EVRF009" in first
    log = first.partition("log: ")[2].split()[0]
    assert "told to refuse" in Path(log).read_text()
    assert sorted(simulator.runs) == sorted(TAGS.values())
    assert set(make_plan(recipe, store, TOOLCHAIN).found) == set(TAGS) - {"decode_b1_c256"}

    simulator.tell()
    again = fails()
    assert "the compiler was not started" in again and "--retry-failed" in again and len(simulator.runs) == 4

    report = compile_recipe(recipe, store, TOOLCHAIN, ref="x", jobs=1, retry_failed=True)
    assert (report.compiled, report.hits) == (1, 3) and simulator.runs[4:] == [TAGS["decode_b1_c256"]]
    assert not list((tmp_path / "store").glob("failures/*"))
    records = [store.program(path.stem) for path in (tmp_path / "store" / "programs").glob("*.json")]
    assert all(set(record.attachments) == {"hlo", "log"} and len(record.blobs) == 3 for record in records)


def test_a_killed_compile_is_not_remembered_and_nothing_of_it_is_stored(simulator, tmp_path):
    recipe = load_recipe(write_recipe(tmp_path, engine={"num_gpu_blocks_override": 20}), target="trn2")
    store = open_store(str(tmp_path / "store"))
    simulator.tell(faults={TAGS["decode_b2_c256"]: "kill"})
    with pytest.raises(CompileError, match="1 of 4"):
        compile_recipe(recipe, store, TOOLCHAIN, jobs=2)
    assert not list((tmp_path / "store").glob("failures/*")) and len(list((tmp_path / "store").glob("programs/*"))) == 3
    assert not list((tmp_path / "store" / "tmp").glob("work-*"))
    simulator.tell()
    report = compile_recipe(recipe, store, TOOLCHAIN, jobs=1)
    assert (report.compiled, report.hits) == (1, 3)
    manifest = json.loads(next((tmp_path / "store" / "bundles").glob("*.json")).read_bytes())
    assert manifest["requires"] == {"neuron_target": "trn2", "logical_core_size": "2"}
    assert manifest["memory"]["sized_by"] == "num_gpu_blocks_override" and manifest["memory"]["num_blocks"] == 20
