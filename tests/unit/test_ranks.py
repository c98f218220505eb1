"""Ranks in processes of their own: they meet, compare, and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from neuron_aot_runtime.contract.errors import ConfigError, DeviceError
from neuron_aot_runtime.contract.facts import Fact
from neuron_aot_runtime.ranks import RankGroup, meet
from neuron_aot_runtime.vllm.arguments import serving_arguments

RANK = """
import sys, time
from pathlib import Path
from neuron_aot_runtime.contract.errors import NeuronAotError
from neuron_aot_runtime.ranks import RankGroup
directory, rank, world_size, manifest, then = sys.argv[1:]
try:
    group = RankGroup(Path(directory), int(rank), int(world_size), timeout=20)
    group.watch(lambda text: print(text, flush=True))
    group.agree({"manifest": manifest, "artifact of p": "same"})
    print("agreed", flush=True)
    if then == "wait":
        time.sleep(60)
    group.close()
except NeuronAotError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""


def start(directory, rank, world_size, manifest="m", then="leave"):
    arguments = map(str, (directory, rank, world_size, manifest, then))
    return subprocess.Popen([sys.executable, "-c", RANK, *arguments], stdout=subprocess.PIPE, text=True)


def end(processes):
    """(exit code, what it printed) of each."""
    try:
        texts = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, texts, strict=True)]


def test_ranks_that_write_at_the_same_instant_bring_each_its_own(tmp_path):
    def rank(number: int) -> list[list[int]]:
        group = RankGroup(tmp_path / "g", number, 8, timeout=20)
        return [group.gather(f"topic{round_}", number) for round_ in range(20)]

    with ThreadPoolExecutor(8) as ranks:
        assert list(ranks.map(rank, range(8))) == [[list(range(8))] * 20] * 8


def test_ranks_of_one_kind_agree_and_leave_nothing_behind(tmp_path):
    found = end([start(tmp_path / "g", rank, 3) for rank in range(3)])
    assert found == [(0, "agreed\n")] * 3
    assert not (tmp_path / "g").exists()


def test_a_rank_that_differs_is_named_by_every_rank(tmp_path):
    found = end([start(tmp_path / "g", rank, 3, "other" if rank == 2 else "m") for rank in range(3)])
    for code, text in found:
        assert code == 9 and "rank 2: manifest: wanted m as rank 0, found other" in text, text
        assert "artifact" not in text and "rank 1:" not in text


def test_ranks_that_do_not_come_are_named(tmp_path):
    with pytest.raises(DeviceError, match=r"ranks 1, 2 of 3 did not come within 0.2 s, says rank 0"):
        RankGroup(tmp_path / "g", 0, 3, timeout=0.2)


def test_when_a_rank_dies_the_others_end_within_seconds_and_name_it(tmp_path):
    processes = [start(tmp_path / "g", rank, 3, then="wait") for rank in range(3)]
    assert [process.stdout.readline() for process in processes] == ["agreed\n"] * 3
    os.kill(processes[1].pid, signal.SIGKILL)
    killed = time.monotonic()
    found = end(processes)
    assert time.monotonic() - killed < 10
    for rank in (0, 2):
        code, text = found[rank]
        assert code == 9 and f"rank 1 (process {processes[1].pid}) has died: rank {rank} ends as well" in text, text


def test_ranks_meet_on_one_host_only():
    with pytest.raises(ConfigError, match="directory of one host"):
        meet("tcp://10.0.0.1:29500", 0, 2)


@pytest.mark.parametrize(
    ("heads", "ranks", "padded"), [(9, 1, None), (9, 3, None), (9, 2, 10), (9, 4, 12), (32, 32, None)]
)
def test_vllm_is_told_the_query_heads_that_the_ranks_hold(heads, ranks, padded):
    """Where they differ from config.json's; with the head size, which transformers would derive from their number."""
    manifest = SimpleNamespace(
        world_size=ranks,
        model=SimpleNamespace(facts=(Fact(name="num_attention_heads", sources=(), value=heads),)),
        kv_cache=SimpleNamespace(head_size=64),
        serving=SimpleNamespace(engine={"dtype": "float32", "quantization": None}),
    )
    arguments = serving_arguments(manifest)
    expected = {"hf_overrides": {"num_attention_heads": padded, "head_dim": 64}} if padded else {}
    assert arguments == {"dtype": "float32", "async_scheduling": False, **expected}
