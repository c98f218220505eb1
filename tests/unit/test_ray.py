"""Compiling on a real local Ray cluster of two worker nodes (processes), with one worker killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from fake_toolchain import FAKE, runs, write_recipe
from neuron_aot_runtime.contract.errors import UsageError

from neuron_aot.compiling import Progress
from neuron_aot.pipeline import compile_recipe
from neuron_aot.recipe import load_recipe
from neuron_aot.schedule.executor import open_executor
from neuron_aot.store import open_store

ENGINE = {"max_model_len": 1024, "max_num_batched_tokens": 512, "max_num_seqs": 32}


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="needs the package ray") as caught:
        open_executor("ray")
    assert "neuron-aot[ray]" in caught.value.next_command


@pytest.fixture
def cluster(compiler, monkeypatch):
    monkeypatch.syspath_prepend(Path(sys.prefix) / "ray")  # where `make install` puts it
    pytest.importorskip("ray", reason="the extra ray is not installed")
    import ray
    from ray.cluster_utils import Cluster

    # Workers find the same modules as this process.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.workers = [made.add_node(num_cpus=1, memory=4 << 30) for _ in range(2)]
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.timeout(180)
def test_a_worker_dies_and_the_bundle_is_complete(cluster, compiler, tmp_path):
    compiler(seconds=0.2, die_once=["decode_b8_c1024"])  # SIGKILL of the Ray worker in the middle of its compile
    recipe, store = load_recipe(write_recipe(tmp_path, engine=ENGINE)), open_store(str(tmp_path / "store"))
    retried: list[str] = []
    progress = Progress(retried=lambda name, error: retried.append(name))
    report = compile_recipe(recipe, store, FAKE, executor=open_executor("ray"), progress=progress)
    assert retried == ["decode_b8_c1024"]
    assert report.programs == report.compiled == len(store.names("programs")) == 12
    # Each was made once; only the killed one began twice.
    assert Counter(runs()) == Counter({name: 1 + (name in retried) for name in set(runs())})
    assert compile_recipe(recipe, store, FAKE).bundle == report.bundle


@pytest.mark.timeout(240)
def test_a_machine_is_lost_and_the_rest_finish(cluster, compiler, tmp_path):
    compiler(seconds=8)  # of the first two: a worker whose machine is gone may still finish what takes an instant
    recipe, store = load_recipe(write_recipe(tmp_path, engine=ENGINE)), open_store(str(tmp_path / "store"))
    busy, retried = set(), Counter()

    def noted(name, note) -> None:
        if note == "generating":
            busy.add(name)
        if len(busy) == len(cluster.workers) == 2:
            while len(runs()) < 2:  # both have read how long they take
                time.sleep(0.02)
            compiler(seconds=0.2)
            cluster.remove_node(cluster.workers.pop(), allow_graceful=False)

    progress = Progress(
        noted=noted,
        made=lambda name, _: busy.discard(name),
        retried=lambda name, error: retried.update([name]),
    )
    report = compile_recipe(recipe, store, FAKE, executor=open_executor("ray"), progress=progress)
    assert report.programs == 12 == len(store.names("programs"))
    assert len(cluster.workers) == 1 and retried
    # A program that was stored when its machine was lost is found there; none is made twice for another reason.
    assert all(count == 1 or name in retried for name, count in Counter(runs()).items())
    assert compile_recipe(recipe, store, FAKE).compiled == 0


INTERRUPTED = """
import sys
from pathlib import Path
from fake_toolchain import FAKE
from neuron_aot.compiling import Interrupted
from neuron_aot.pipeline import compile_recipe
from neuron_aot.recipe import load_recipe
from neuron_aot.schedule.executor import open_executor
from neuron_aot.store import open_store

if __name__ == "__main__":
    try:
        compile_recipe(load_recipe(Path(sys.argv[1])), open_store(sys.argv[2]), FAKE, executor=open_executor("ray"))
    except Interrupted as stop:
        print(stop.kept, stop.programs)
"""


@pytest.mark.timeout(240)
def test_ctrl_c_ends_the_workers_and_keeps_what_is_finished(cluster, compiler, tmp_path):
    compiler(seconds=0.4)
    recipe, store = load_recipe(write_recipe(tmp_path, engine=ENGINE)), open_store(str(tmp_path / "store"))
    script = tmp_path / "run.py"
    script.write_text(INTERRUPTED)
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    process = subprocess.Popen(
        [sys.executable, str(script), str(recipe.path), str(store.root)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    until = time.monotonic() + 120
    while len(store.names("programs")) < 2 and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    kept, programs = map(int, out.split())
    begun = len(runs())
    assert 2 <= kept < programs == 12 and not store.names("bundles")
    time.sleep(1.5)
    assert len(runs()) == begun, "nothing goes on after the command has ended"
    report = compile_recipe(recipe, store, FAKE)
    assert report.programs == 12 and report.compiled <= 12 - kept and not store.names("failures")
