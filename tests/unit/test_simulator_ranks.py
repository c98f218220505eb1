"""Ranks on the simulator's nrtpy, in processes of their own: they meet, add up, and notice when one is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from neuron_aot_runtime.device.nrt_errors import explain
from neuron_aot_runtime.ranks import free_address

SUM = """HloModule sum
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY main { x = f32[2] parameter(0)
  s = f32[2] all-reduce(x), replica_groups={{0,1}}, to_apply=add
  ROOT t = (f32[2]) tuple(s) }
"""
RANK = """
import sys
sys.modules["jax"] = None  # each import of an array would try to import it, which takes seconds
import numpy as np, nrtpy
neff, rank, world_size, enabled, steps = sys.argv[1], *map(int, sys.argv[2:])
nrtpy.configure(visible_cores=[rank])
try:
    model = nrtpy.NrtpyModel.load_from_neff(neff, cc_enabled=bool(enabled), rank_id=rank, world_size=world_size)
    for step in range(steps):
        x = nrtpy.NrtpyTensor.from_numpy(np.array([rank + 1, 10 * step], np.float32))
        y = nrtpy.NrtpyTensor.from_numpy(np.zeros(2, np.float32))
        model(inputs={"input0": x}, outputs={"output0": y})
        print(y.numpy().tolist(), flush=True)
except nrtpy.NrtError as error:
    print(error, flush=True)
"""


@pytest.fixture
def neff(simulator, tmp_path, monkeypatch):
    """A program of two ranks that adds up what they bring."""
    from jaxlib import _hlo

    monkeypatch.setenv("NEURON_RT_ROOT_COMM_ID", free_address())
    hlo, path = tmp_path / "sum.pb", tmp_path / "sum.neff"
    hlo.write_bytes(_hlo.hlo_module_from_text(SUM).as_serialized_hlo_module_proto())
    command = ["neuronx-cc", "compile", hlo, "--framework", "XLA", "--target", "trn2", "--output", path]
    subprocess.run(command, cwd=tmp_path, check=True)
    return path


def run(neff, *ranks, world_size=2, enabled=1, steps=(3, 3)):
    """What each of ``ranks`` printed. ``steps``: how many each runs before it ends."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, *map(str, (neff, rank, world_size, enabled, steps[rank]))],
            stdout=subprocess.PIPE, text=True,
        )
        for rank in ranks
    ]  # fmt: skip
    try:
        texts = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(ranks)
    return texts


def test_two_ranks_add_up(neff):
    for text in run(neff, 0, 1):
        assert text.endswith("[3.0, 0.0]\n[3.0, 20.0]\n[3.0, 40.0]\n")


def test_a_rank_that_ends_fails_the_others(neff):
    left, ended = run(neff, 0, 1, steps=(3, 1))
    assert ended.endswith("[3.0, 0.0]\n") and "NRT_EXEC_HW_ERR_COLLECTIVES" in left.splitlines()[-1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_waits_alone_times_out(neff, simulator, rank):
    simulator.tell(runtime={"patience": 1})
    (told,) = run(neff, rank)
    assert "NRT_TIMEOUT" in explain(RuntimeError(told))[0]


def test_what_does_not_belong_together_is_refused(neff, monkeypatch):
    for wrong in ({"world_size": 4}, {"enabled": 0}):
        assert "NRT_INVALID: a program of 2 ranks" in run(neff, 0, **wrong)[0]
    monkeypatch.delenv("NEURON_RT_ROOT_COMM_ID")
    assert "NRT_INVALID" in run(neff, 0)[0]
