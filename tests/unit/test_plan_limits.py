"""What a plan may take: programs, minutes, device memory; and that it is a function of its input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import answer
from fake_toolchain import write_recipe
from toy import CONFIG

SAMPLE = Path(__file__).parents[1] / "data" / "azure_llm_conv_sample.csv"
PLAN = ("plan", "recipe.yaml", "--traffic", str(SAMPLE), "--max-model-len", "8192", "--jobs", "2")
LISTS = ("num_batched_tokens_buckets", "num_seqs_buckets", "decode_context_length_buckets")


@pytest.fixture
def run(run, tmp_path):
    engine = {"block_size": 32, "max_num_seqs": 8, "max_num_batched_tokens": 128}
    write_recipe(tmp_path, config={"max_position_embeddings": 16384, "width": 512}, engine=engine)
    return run


def test_each_limit_is_kept_and_the_binding_one_is_told(run):
    free = answer(run(*PLAN, "--json"))
    assert free["unlimited"] is None and free["binding"] == free["limits"] == []
    minutes, gib = free["compile_seconds"] / 60 * 0.6, (free["hbm_bytes"] - 10_000_000) / (1 << 30)
    for option, value, found in (
        ("--max-compile-minutes", minutes, lambda data: data["compile_seconds"] / 60),
        ("--max-hbm", gib, lambda data: data["hbm_bytes"] / (1 << 30)),
        ("--max-programs", free["programs"] - 1, lambda data: data["programs"]),
    ):
        data = answer(run(*PLAN, option, str(value), "--json"))
        assert data["binding"] == [option] and found(data) <= value < found(free)
        assert data["programs"] < free["programs"]
        assert [data["unlimited"][name] for name in LISTS] == [free[name] for name in LISTS]
        work, least = (item["prefill_work"] + item["decode_work"] for item in (data, free))
        assert work >= least * 0.999
    told = run(*PLAN, "--max-compile-minutes", str(minutes), "--max-hbm", "99").stdout
    assert "limit      --max-hbm 99: not binding" in told and ": binding; without limits" in told


def test_limits_that_nothing_keeps_say_what_is_least(run):
    error = run(*PLAN, "--max-compile-minutes", "0.1", "--max-hbm", "0.01", code=2).stderr
    assert "no choice of buckets keeps to --max-compile-minutes 0.1 and --max-hbm 0.01" in error
    # 2 programs of 15 s with 2 jobs
    assert (
        "wanted: --max-compile-minutes 0.25 or more and --max-hbm 0.07 or more" in error
        and "2 programs at the least" in error
    )


def test_a_store_says_what_programs_take(run, tmp_path):
    run("compile", "recipe.yaml", "--jobs", "1")
    data = answer(run(*PLAN, "--store", "store", "--json"))
    assert data["estimated_from"] > 0 and data["compile_seconds"] < 15, "the fake compiler is quick"
    assert "past compiles in the store" in run(*PLAN, "--store", "store").stdout
    assert "there is no store" in run(*PLAN, "--store", "elsewhere", code=4).stderr


def test_the_last_line_has_the_lists_and_the_padding_of_each_also_for_decode(run):
    data = answer(run(*PLAN, "--json"))
    for score in (data, data["default"], data["held_out"]["chosen"], data["held_out"]["default"]):
        assert set(score["padding"]) == set(LISTS) <= set(score)
        assert all(share >= 0 for share in score["padding"].values())
        assert score["prefill_work"] > 0 and score["decode_work"] > 0
    uses = {use["name"]: use for use in data["uses"]}
    assert len(uses) == data["programs"] == len(data["uses"])
    decoded = [use for use in uses.values() if use["phase"] == "decode" and use["steps"]]
    rows = sum(use["steps"] * use["size"] for use in decoded)
    real = sum(use["steps"] * use["size"] / (1 + use["padding"]) for use in decoded)
    assert rows / real - 1 == pytest.approx(data["padding"]["num_seqs_buckets"], abs=1e-5)
    prompts = [use for use in uses.values() if use["phase"] == "prefill" and use["steps"]]
    tokens = sum(use["steps"] * use["size"] for use in prompts)
    real = sum(use["steps"] * use["size"] / (1 + use["padding"]) for use in prompts)
    assert tokens / real - 1 == pytest.approx(data["padding"]["num_batched_tokens_buckets"], abs=1e-5)


def test_a_plan_is_the_same_in_every_process(tmp_path):
    """Whatever the hash seed is."""
    write_recipe(tmp_path, config=CONFIG | {"dtype": "bfloat16", "max_position_embeddings": 8192})
    code = "from neuron_aot.cli import main; main()"
    told = set()
    for seed in ("0", "1"):
        ended = subprocess.run(
            [sys.executable, "-c", code, *PLAN, "--json"],
            capture_output=True, text=True, check=True, cwd=tmp_path, env=os.environ | {"PYTHONHASHSEED": seed},
        )  # fmt: skip
        told.add(ended.stdout)
    assert len(told) == 1 and json.loads(told.pop())["programs"]
