"""Several ranks through vLLM's worker processes: the tokens of one rank."""

import os
import re
import time

import psutil
import pytest
from serving import (
    TINY_ENGINE,
    TINY_NEURON,
    compile_bundle,
    free_port,
    running,
    start_server,
    tiny_prompts,
    tokens_together,
)

pytest.importorskip("vllm")


def tokens_of(model, folder, ranks, prompts, target="cpu"):
    name, engine = f"{target}-tp{ranks}", TINY_ENGINE | {"tensor_parallel_size": ranks}
    reference = compile_bundle(model, folder, name, engine, TINY_NEURON, target=target)
    return tokens_together(reference, model, folder / name, prompts, 24)


def test_two_and_four_ranks_give_the_tokens_of_one_and_so_do_two_neuron_ranks(simulator, tiny, tmp_path):
    model = tiny("gqa")  # 4 heads, 2 KV heads: divided by two ranks, shared by four
    prompts = tiny_prompts(3, 31, 33, 100)
    one, two, four = (tokens_of(model, tmp_path, ranks, prompts) for ranks in (1, 2, 4))
    neuron = tokens_of(model, tmp_path, 2, prompts, target="trn2")  # its collectives: the simulator's
    assert one == two == four == neuron and all(len(tokens) == 24 for tokens in one)


def test_a_server_whose_rank_is_killed_ends_within_seconds_and_names_it(tiny, tmp_path):
    model, log = tiny("gqa"), tmp_path / "log"
    reference = compile_bundle(model, tmp_path, "two", TINY_ENGINE | {"tensor_parallel_size": 2}, TINY_NEURON)
    with running(reference, str(model), log=log) as server:
        assert server.post("/v1/completions", prompt=[1, 2, 3], max_tokens=4)[0] == 200
        (rank,) = (int(process) for process in re.findall(r"pid=(\d+)\).* rank 1 is ready", log.read_text()))
        assert rank in {child.pid for child in psutil.Process(server.process.pid).children(recursive=True)}
        killed = time.monotonic()
        psutil.Process(rank).kill()
        server.process.wait(60)  # with 0: vLLM calls the end of its engine a shutdown
        assert time.monotonic() - killed < 20
    assert f"rank 1 (process {rank}) has died: rank 0 ends as well" in log.read_text()


def test_a_rank_that_differs_ends_the_start_and_is_named_by_every_rank(tiny, tmp_path, monkeypatch):
    """One rank says that it runs another version of this package, as on a host with two installations."""
    (tmp_path / "sitecustomize.py").write_text(
        "from neuron_aot_runtime.ranks import RankGroup as group\n"
        "agree, odd = group.agree, {'neuron-aot-runtime': '0.0.1'}\n"
        "group.agree = lambda self, facts: agree(self, facts | odd if self.rank == 1 else facts)\n"
    )
    model, log = tiny("gqa"), tmp_path / "log"
    reference = compile_bundle(model, tmp_path, "two", TINY_ENGINE | {"tensor_parallel_size": 2}, TINY_NEURON)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    process = start_server(reference, str(model), port=free_port(), log=log)
    try:
        code = process.wait(240)
    finally:
        process.kill()
    text = log.read_text()
    told = re.findall(r"pid=(\d+)\).* - rank 1: neuron-aot-runtime: wanted .* as rank 0, found 0.0.1", text)
    assert code != 0 and len(set(told)) == 2, text[-5000:]
    assert "is ready" not in text
