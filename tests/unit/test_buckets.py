"""The grid as `neuron-aot buckets` tells it."""

from __future__ import annotations

import json

from fake_toolchain import write_recipe


def test_the_grid_without_a_store(run):
    data = json.loads(run("buckets", "recipe.yaml", "--json").stdout)
    rows = {row["name"]: row for row in data["programs"]}
    assert list(rows) == ["prefill_s128_c128", "prefill_s128_c256", "decode_b1_c256", "decode_b2_c256"]
    assert rows["prefill_s128_c128"]["bound"] == {"least_size": 1, "least_context": 1, "padding": 127}
    assert rows["prefill_s128_c256"]["bound"]["least_context"] == 129
    assert rows["decode_b2_c256"]["bound"] == {"least_size": 2, "least_context": 1, "padding": 0}
    assert {row["in_store"] for row in rows.values()} == {None} and data["estimated_seconds"] is None
    # 17 blocks of 32 tokens (2 sequences of 256, and the null block), 8 wide, bfloat16
    assert data["memory"] == {"weights": 16, "kv_cache": 17 * 32 * 8 * 2}


def test_shapes_that_no_step_reaches_are_told_with_the_reason(run, tmp_path):
    write_recipe(tmp_path, engine={"max_model_len": 100, "max_num_batched_tokens": 512})
    told = run("buckets", "recipe.yaml").stdout
    assert "not made   prefill_s256_c256: a smaller token bucket already holds max_model_len (100)" in told


def test_a_store_says_what_it_holds_and_what_the_rest_takes(run, tmp_path, compiler):
    run("compile", "recipe.yaml", "--jobs", "1")
    data = json.loads(run("buckets", "recipe.yaml", "--store", "store", "--json").stdout)
    assert all(row["in_store"] and row["seconds"] == 0 for row in data["programs"]) and data["estimated_seconds"] == 0
    write_recipe(tmp_path, engine={"max_num_seqs": 4})
    data = json.loads(run("buckets", "recipe.yaml", "--store", "store", "--jobs", "2", "--json").stdout)
    assert not any(row["in_store"] for row in data["programs"]), "another KV cache, so other programs"
    assert all(row["seconds"] is not None for row in data["programs"]) and data["unknown"] == 0
    assert "with 2 jobs" in run("buckets", "recipe.yaml", "--store", "store", "--jobs", "2").stdout


def test_a_store_that_is_not_there_is_an_error(run):
    assert "there is no store at nowhere" in run("buckets", "recipe.yaml", "--store", "nowhere", code=4).stderr


def test_an_empty_store_knows_nothing(run, tmp_path):
    (tmp_path / "store").mkdir()
    told = run("buckets", "recipe.yaml", "--store", "store").stdout
    assert "compile    unknown" in told and "4 programs unknown" in told
