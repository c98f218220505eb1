"""Shards without a coordinator, assembly, retries and admission, with real processes and a fake compiler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from fake_toolchain import FAKE, runs, write_recipe
from neuron_aot_runtime.contract.errors import BundleMissError, CompileError, UsageError
from neuron_aot_runtime.contract.manifest import Bucket

from neuron_aot.estimates import DEFAULT_MEMORY_MB, Sample, estimate_memory, memory_needs
from neuron_aot.pipeline import assemble, compile_recipe, make_plan
from neuron_aot.recipe import load_recipe
from neuron_aot.schedule.local import run_tasks
from neuron_aot.schedule.memory import HostMemory
from neuron_aot.schedule.shards import Shard, parse_shard
from neuron_aot.store import open_store

TWELVE = {"max_model_len": 1024, "max_num_batched_tokens": 512, "max_num_seqs": 32}


@pytest.fixture
def recipe(tmp_path, compiler):
    return load_recipe(write_recipe(tmp_path, engine=TWELVE))


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


def test_the_split_is_the_recipes_alone_and_complete(recipe, store):
    plan = make_plan(recipe, store, FAKE)
    parts = [{item.name for item in plan.only(Shard(index, 5)).grid.programs} for index in range(1, 6)]
    assert sum(map(len, parts)) == len(set().union(*parts)) == len(plan.grid.programs)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    compile_recipe(recipe, store, FAKE, shard=Shard(2, 5))
    again = make_plan(recipe, store, FAKE)
    assert {item.name for item in again.only(Shard(1, 5)).grid.programs} == parts[0]


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "-1/2", "1/0", "1/2/3"])
def test_what_names_no_shard(text):
    with pytest.raises(UsageError, match="--shard"):
        parse_shard(text)


RUN = """
import sys
from pathlib import Path
from fake_toolchain import FAKE
from neuron_aot.pipeline import compile_recipe
from neuron_aot.recipe import load_recipe
from neuron_aot.schedule.shards import parse_shard
from neuron_aot.store import open_store

if __name__ == "__main__":
    report = compile_recipe(
        load_recipe(Path(sys.argv[1])), open_store(sys.argv[2]), FAKE, jobs=1, shard=parse_shard(sys.argv[3])
    )
    print(report.compiled)
"""


def start(tmp_path: Path, shard: str) -> subprocess.Popen:
    script = tmp_path / "run.py"
    if not script.exists():  # the one that started before may be reading it
        script.write_text(RUN)
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(script), str(tmp_path / "recipe.yaml"), str(tmp_path / "store"), shard]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )


def compiled_by(process: subprocess.Popen) -> int:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-4000:]
    return int(out)


def test_a_shard_dies_and_others_overlap_and_the_bundle_is_complete(recipe, store, compiler, tmp_path):
    count = len(make_plan(recipe, store, FAKE).grid.programs)
    compiler(seconds=0.4)
    killed = start(tmp_path, "1/3")
    until = time.monotonic() + 60
    while not store.names("requests"):
        assert time.monotonic() < until
        time.sleep(0.02)
    while len(runs()) < 2:
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    stored = len(store.names("programs"))
    assert 1 <= stored < count / 3
    with pytest.raises(BundleMissError) as caught:
        assemble(recipe, store, FAKE, ref="x", again="neuron-aot compile recipe.yaml")
    assert len(caught.value.details) == count - stored and caught.value.exit_code == 3
    assert "neuron-aot compile" in str(caught.value) and not store.names("bundles")
    compiler(seconds=0.1)
    # 1/2 overlaps with both of 2/3 and 3/3, and 1/3 runs twice.
    others = [start(tmp_path, shard) for shard in ("2/3", "3/3", "1/3", "1/3", "1/2")]
    compiled = [compiled_by(process) for process in others]
    assert sum(compiled) == count - stored
    starts = Counter(runs())
    assert len(starts) == count and sum(starts.values()) == count + 1  # only what was killed began twice
    report = assemble(recipe, store, FAKE, ref="x", again="")
    assert (report.programs, report.compiled) == (count, 0)
    assert compile_recipe(recipe, store, FAKE).bundle == report.bundle


# Memory


class Host:
    """This machine's processes, with another memory."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.jobs: list[int] = []

    def default_jobs(self) -> int:
        return 4

    def memory(self) -> HostMemory:
        return HostMemory(total=self.total, free=self.total)

    def run(self, tasks, needs, jobs):
        self.jobs.append(jobs)
        return run_tasks(tasks, jobs=jobs)


def test_a_doomed_run_is_refused_before_any_work_and_force_overrides(recipe, store):
    host = Host(DEFAULT_MEMORY_MB["cpu"] - 1)
    with pytest.raises(CompileError, match="more memory than any one host has") as caught:
        compile_recipe(recipe, store, FAKE, executor=host)
    assert "--force" in caught.value.next_command and caught.value.found.startswith("1499 MB")
    assert len(caught.value.details) == len(make_plan(recipe, store, FAKE).grid.programs)
    assert runs() == [] and not store.names("programs")
    assert compile_recipe(recipe, store, FAKE, executor=host, force=True).compiled > 4


def test_a_program_killed_once_is_made_in_the_second_try_with_fewer_workers(recipe, store, compiler):
    compiler(die_once=["decode_b1_c1024"])
    host, tried = Host(100_000), []
    from neuron_aot.compiling import Progress

    progress = Progress(retried=lambda name, error: tried.append((name, str(error))))
    report = compile_recipe(recipe, store, FAKE, executor=host, progress=progress)
    assert report.compiled == report.programs and host.jobs == [4, 2]
    assert [name for name, _ in tried] == ["decode_b1_c1024"] and "SIGKILL" in tried[0][1]


def test_a_refusal_of_the_compiler_is_not_tried_again(recipe, store, compiler):
    compiler(fail=["decode_b1_c1024"])
    with pytest.raises(CompileError, match="FAKE_E001"):
        compile_recipe(recipe, store, FAKE, jobs=2)
    assert Counter(runs())["decode_b1_c1024"] == 1


def sample(size: int, context: int, memory: int, phase: str = "prefill") -> Sample:
    return Sample(phase, Bucket(size=size, context=context), 1.0, memory, 1)


def test_memory_is_scaled_by_what_past_compiles_show():
    assert estimate_memory([], "prefill", Bucket(size=1, context=1)) is None
    one = [sample(128, 128, 1000)]
    assert estimate_memory(one, "decode", Bucket(size=128, context=128)) is None
    assert estimate_memory(one, "prefill", Bucket(size=512, context=512)) == 1000  # one place shows no slope
    root = [sample(128, 128, 1000), sample(256, 256, 2000)]  # four times the volume, twice the memory
    assert estimate_memory(root, "prefill", Bucket(size=512, context=512)) == pytest.approx(4000, rel=0.01)


def test_needs_are_learned_from_the_store(recipe, store):
    plan = make_plan(recipe, store, FAKE)
    programs = plan.misses
    assert set(memory_needs(store, programs, "cpu", plan.layout)) == {DEFAULT_MEMORY_MB["cpu"]}
    compile_recipe(recipe, store, FAKE)
    learned = memory_needs(store, programs, "cpu", plan.layout)
    peaks = [json.loads(store.read(name))["provenance"]["peak_memory_mb"] for name in store.names("programs")]
    assert min(peaks) * 0.5 < min(learned) <= max(learned) < max(peaks) * 2
