"""Replicas of an engine over one bundle: vLLM's own data parallelism."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import s3_server
from counting_proxy import counting_proxy
from neuron_aot_runtime.contract.layout import blob_path
from neuron_aot_runtime.store import open_bundle
from reference import TOLERANCE, differences
from serving import TINY_ENGINE, TINY_NEURON, compile_bundle, running, tiny_prompts

pytest.importorskip("vllm")

REPLICAS = ("--data-parallel-size", "2", "--api-server-count", "1")


def served_one_by_one(server, prompts, count=16):
    """The tokens of each prompt, and how many requests each replica has answered: vLLM turns from one to the other."""
    found = []
    for prompt in prompts:
        body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True}
        status, answer = server.post("/v1/completions", logprobs=0, return_tokens_as_token_ids=True, **body)
        assert status == 200, answer
        tokens = answer["choices"][0]["logprobs"]["tokens"]
        found.append([int(token.removeprefix("token_id:")) for token in tokens])
    lines = re.findall(
        r'^vllm:request_success_total\{engine="(\d)",finished_reason="length",.*\} (\S+)',
        server.get("/metrics"),
        re.MULTILINE,
    )
    return found, {int(engine): float(count) for engine, count in lines}


def test_two_replicas_of_two_ranks_fetch_once_and_have_cores_of_their_own(simulator, tiny, tmp_path, monkeypatch):
    """From S3 into an empty cache, on the simulator, where a core belongs to one process."""
    model = tiny("gqa")
    local = compile_bundle(
        model, tmp_path, "two", TINY_ENGINE | {"tensor_parallel_size": 2}, TINY_NEURON, target="trn2"
    )
    programs = open_bundle(local).manifest.programs
    server = s3_server.start(tmp_path / "s3")
    try:
        with counting_proxy(server.endpoint) as (url, counted):
            for name, value in server.environment().items():
                monkeypatch.setenv(name, value)
            push = [sys.executable, "-c", "from neuron_aot.cli import main; main()", "push", local, "s3://bucket/aot"]
            subprocess.run([*push, "--ref", "two"], check=True)
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            monkeypatch.setenv("NEURON_AOT_CACHE", str(tmp_path / "cache"))
            monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "4-7")
            prompts = tiny_prompts(5, 33, 60, 100)
            with running("s3://bucket/aot@two", str(model), *REPLICAS, log=tmp_path / "log") as engine:
                found, answered = served_one_by_one(engine, prompts)
    finally:
        server.stop()
    assert [d for d in differences(model, prompts, found) if d.deficit > TOLERANCE] == []
    assert answered == {0: 2, 1: 2}
    fetched = {program.name: counted[f"/bucket/aot/{blob_path(program.artifact.digest)}"] for program in programs}
    assert fetched == dict.fromkeys(fetched, 1)
    ready = {int(process) for process in re.findall(r"pid=(\d+)\).* rank \d is ready", (tmp_path / "log").read_text())}
    held = {path.name: int(path.read_text()) for path in simulator.folder.glob("told.json.core*")}
    assert sorted(held) == [f"told.json.core{core}" for core in (4, 5, 6, 7)]
    assert len(ready) == 4 and set(held.values()) == ready


def test_two_replicas_of_one_rank_on_the_cpu_target(tiny, tmp_path, monkeypatch):
    """Which takes no core for itself, however few may be used."""
    model = tiny("gqa")
    reference = compile_bundle(model, tmp_path, "one", TINY_ENGINE, TINY_NEURON)
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0")
    prompts = tiny_prompts(5, 33, 60, 100)
    with running(reference, str(model), *REPLICAS, log=tmp_path / "log") as engine:
        found, answered = served_one_by_one(engine, prompts)
    assert [d for d in differences(model, prompts, found) if d.deficit > TOLERANCE] == []
    assert answered == {0: 2, 1: 2}
