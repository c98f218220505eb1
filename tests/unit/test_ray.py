"""Compiling on a real local Ray cluster of two worker nodes (processes), with one worker killed."""

from __future__ import annotations

import os
import sys
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
