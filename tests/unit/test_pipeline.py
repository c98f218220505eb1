"""The main path with real worker processes, real files and a fake compiler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_toolchain import FAKE, runs, write_recipe
from neuron_aot_runtime.contract.errors import CompileError, LoweringError, StoreError, UsageError
from neuron_aot_runtime.contract.layout import blob_path
from neuron_aot_runtime.store import open_bundle

from neuron_aot.compiling import Progress, job_of
from neuron_aot.make import Job, make_program
from neuron_aot.pipeline import compile_recipe, make_plan
from neuron_aot.recipe import load_recipe
from neuron_aot.store import open_store

NAMES = ["prefill_s128_c128", "prefill_s128_c256", "decode_b1_c256", "decode_b2_c256"]


@pytest.fixture
def recipe(tmp_path, compiler):
    return write_recipe(tmp_path)


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


def compile_(recipe, store, **options):
    return compile_recipe(load_recipe(recipe), store, FAKE, **options)


def contents(store):
    return {str(path): path.read_bytes() for path in store.root.rglob("*") if path.is_file()}


def test_compile_publishes_a_bundle_and_a_second_run_does_nothing(recipe, store):
    first = compile_(recipe, store, ref="fake/demo", jobs=2)
    assert (first.programs, first.compiled, first.hits) == (4, 4, 0)
    before = contents(store)
    second = compile_(recipe, store, ref="fake/demo")
    assert (second.bundle, second.compiled, second.hits) == (first.bundle, 0, 4)
    assert contents(store) == before
    assert not [path for path in before if "/tmp/" in path.removeprefix(str(store.root)) or path.endswith(".lock")]
    bundle = open_bundle(f"{store.root}@fake/demo")
    assert [program.name for program in bundle.manifest.programs] == NAMES
    for program in bundle.manifest.programs:
        assert bundle.artifact_path(program).read_bytes().startswith(b"artifact ")


def test_a_worker_elsewhere_writes_to_the_store_that_was_named(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("./store")
    plan = make_plan(load_recipe(recipe), store, FAKE)
    job = job_of(plan, plan.misses[0], store, FAKE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert make_program(job, print).compiled
    assert not list((tmp_path / "elsewhere").iterdir())
    assert open_store(str(tmp_path / "store")).find(job.request_key)
    assert job_of(plan, plan.misses[0], open_store("memory://bucket/x"), FAKE).store == "memory://bucket/x"


def test_new_weights_hit_and_a_new_shape_misses(recipe, store):
    first = compile_(recipe, store)
    (recipe.parent / "model" / "model.safetensors").write_bytes(b"other weights")
    write_recipe(recipe.parent, config={"_name_or_path": "renamed", "transformers_version": "9"})
    again = compile_(recipe, store)
    assert (again.compiled, again.bundle) == (0, first.bundle)
    write_recipe(recipe.parent, config={"width": 16})
    assert compile_(recipe, store).compiled == 4


def test_a_failure_keeps_the_others_and_publishes_nothing(recipe, store, compiler):
    compiler(fail=["decode_b1_c256"], unlowerable=["decode_b2_c256"])
    with pytest.raises((CompileError, LoweringError)) as caught:
        compile_(recipe, store, ref="fake/demo")
    text = str(caught.value)
    assert "2 of 4 programs failed" in text and "FAKE_E001" in text and "without a rule" in text
    assert not store.names("bundles") and not store.names("refs")
    compiler()
    assert compile_(recipe, store).compiled == 2


@pytest.mark.parametrize("how", ["die", "empty"])
def test_a_compiler_that_dies_or_lies_leaves_nothing(recipe, store, compiler, how):
    compiler(**{how: ["decode_b1_c256"]})
    with pytest.raises(CompileError) as caught:
        compile_(recipe, store, jobs=1)
    assert "decode_b1_c256" in str(caught.value)
    assert ("SIGKILL" if how == "die" else "wrote no artifact") in str(caught.value)
    assert len(store.names("programs")) == 3
    compiler()
    assert compile_(recipe, store).compiled == 1
    assert not store.names("tmp") and not store.names("locks")


def test_a_damaged_or_lost_artifact_is_made_again(recipe, store):
    first = compile_(recipe, store)
    programs = open_bundle(str(store.root)).manifest.programs
    (store.root / blob_path(programs[0].artifact.digest)).write_bytes(b"x" * programs[0].artifact.size)
    (store.root / blob_path(programs[1].artifact.digest)).unlink()
    again = compile_(recipe, store)
    assert (again.compiled, again.bundle) == (2, first.bundle)
    assert store.is_whole(programs[0].artifact) and store.is_whole(programs[1].artifact)


def test_a_lost_artifact_of_an_irreproducible_compiler_is_replaced(recipe, store, compiler):
    compiler(random=True)
    first = compile_(recipe, store)
    program = open_bundle(f"{store.root}@{first.bundle}").manifest.programs[0]
    (store.root / blob_path(program.artifact.digest)).unlink()
    again = compile_(recipe, store)
    assert again.compiled == 1 and again.bundle != first.bundle
    assert store.program(program.program_key).artifact != program.artifact


def test_another_compiler_version_compiles_again_under_the_same_recipe(recipe, store, compiler):
    first = compile_(recipe, store)
    compiler(version=2)
    second = compile_(recipe, store)
    assert second.compiled == 4 and second.bundle != first.bundle
    compiler(version=1)
    assert compile_(recipe, store).compiled == 0


def test_the_plan_names_what_is_missing_without_writing(recipe, store):
    plan = make_plan(load_recipe(recipe), store, FAKE)
    assert plan.misses[0].name.startswith("prefill_s128")
    assert sorted(program.name for program in plan.misses) == sorted(NAMES) and not plan.found
    assert not store.root.exists()


def test_a_bad_ref_is_refused_before_any_work(recipe, store):
    with pytest.raises(UsageError):
        compile_(recipe, store, ref="../evil")
    assert runs() == []


def test_sources_that_change_during_a_compile_are_noticed(recipe, store):
    plan = make_plan(load_recipe(recipe), store, FAKE)
    program = plan.misses[0]
    job = Job(program, plan.request_keys[program.name], {"sources": "older"}, str(store.root), FAKE)
    with pytest.raises(CompileError, match="changed during the compile"):
        make_program(job, print)
    assert not store.root.exists()


def test_a_worker_with_another_compiler_makes_nothing(recipe, store, compiler):
    plan = make_plan(load_recipe(recipe), store, FAKE)
    program, made_with = plan.misses[0], {"compiler": "fake", "version": "1"}
    job = Job(program, plan.request_keys[program.name], plan.lowering, str(store.root), FAKE, generator=made_with)
    compiler(version=2)
    with pytest.raises(CompileError, match="another compiler"):
        make_program(job, print)
    assert not store.root.exists()


def test_an_unwritable_store_is_told_before_any_work(recipe, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        compile_(recipe, open_store(str(tmp_path / "file" / "store")))
    assert runs() == []


def test_progress_tells_each_program_once(recipe, store):
    told = []
    progress = Progress(made=lambda name, made: told.append(name), noted=lambda name, note: told.append(note))
    compile_(recipe, store, progress=progress)
    assert sorted(item for item in told if item in NAMES) == sorted(NAMES)
    assert told.count("generating") == 4


SCRIPT = """
import json, sys
from pathlib import Path
from fake_toolchain import FAKE
from neuron_aot.compiling import Interrupted
from neuron_aot.pipeline import compile_recipe
from neuron_aot.recipe import load_recipe
from neuron_aot.store import open_store

if __name__ == "__main__":
    try:
        report = compile_recipe(load_recipe(Path(sys.argv[1])), open_store(sys.argv[2]), FAKE, jobs=1)
        print(json.dumps([report.bundle, report.compiled]))
    except Interrupted as stop:
        print(json.dumps(["interrupted", stop.kept]))
"""


def start(script: Path, recipe, store) -> subprocess.Popen:
    script.write_text(SCRIPT)
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = [sys.executable, str(script), str(recipe), str(store.root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def test_eight_processes_compile_each_program_once(recipe, store, compiler, tmp_path):
    compiler(seconds=0.2, random=True)
    processes = [start(tmp_path / f"run{index}.py", recipe, store) for index in range(8)]
    results = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert sorted(runs()) == sorted(NAMES)
    assert len({bundle for bundle, _ in results}) == 1
    assert sum(compiled for _, compiled in results) == 4


def test_when_the_winner_is_killed_a_waiter_takes_over(recipe, store, compiler, tmp_path):
    compiler(seconds=30)
    winner = start(tmp_path / "winner.py", recipe, store)
    wait_for(lambda: len(runs()) == 1)
    compiler()
    waiter = start(tmp_path / "waiter.py", recipe, store)
    time.sleep(0.5)
    os.killpg(winner.pid, signal.SIGKILL)
    winner.communicate()
    assert json.loads(waiter.communicate(timeout=20)[0])[1] == 4


def test_interrupt_keeps_what_is_finished(recipe, store, compiler, tmp_path):
    compiler(seconds=0.5)
    process = start(tmp_path / "run.py", recipe, store)
    wait_for(lambda: len(store.names("requests")) >= 1)
    os.killpg(process.pid, signal.SIGINT)
    state, kept = json.loads(process.communicate(timeout=20)[0])
    assert state == "interrupted" and 1 <= kept < 4
    compiler()
    assert compile_(recipe, store).hits == kept


def wait_for(condition, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)
