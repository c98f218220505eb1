"""The command in a server's miss: pasted into a shell, it makes the bundle that serves what was asked for."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from neuron_aot_runtime.contract.serving import resolve_serving
from neuron_aot_runtime.store import Reference
from neuron_aot_runtime.vllm.building import build_command, can_be_built, serve_words
from neuron_aot_runtime.vllm.check import Difference, compare

from neuron_aot.user_command import parse_command

sys.path.insert(0, str(Path(__file__).parents[1] / "inproc"))
from fake_bundle import CONFIG, ENGINE, NEURON, make_manifest

MANIFEST = make_manifest()


def bundle(name: str | None, manifest=MANIFEST):
    return SimpleNamespace(
        manifest=manifest, store_root="s3://bucket/a b", reference=Reference("s3://bucket/a b", name)
    )


@pytest.mark.parametrize(
    ("engine", "neuron"),
    [
        ({}, {}),
        ({"max_num_seqs": 8, "num_gpu_blocks_override": 99}, {"num_seqs_buckets": [1, 3, 8]}),
        ({"tensor_parallel_size": 2}, {"sequence_parallel_enabled": False}),
        ({"dtype": "bfloat16", "max_num_batched_tokens": 256}, {"num_batched_tokens_buckets": [256]}),
        ({}, {"on_device_sampling_config": {"all_greedy": True}, "decode_context_length_buckets": None}),
        (
            {"max_num_batched_tokens": 512, "max_model_len": 200},
            {"num_batched_tokens_buckets": None, "kv_segment_size_buckets": [512]},
        ),
    ],
)
def test_the_command_asks_for_the_same_serving(engine, neuron):
    asked = resolve_serving(ENGINE | engine, NEURON | neuron, model_config=CONFIG)
    told = build_command(bundle("llama/prod"), serve_words("/models/a model", asked, MANIFEST))
    words = shlex.split(told)
    assert words[:8] == [
        "neuron-aot",
        "compile",
        "--store",
        "s3://bucket/a b",
        "--target",
        "fake",
        "--ref",
        "llama/prod",
    ]
    assert words[8] == "--from-command" and len(words) == 10
    user = parse_command(shlex.split(words[9]))
    assert user.model == "/models/a model"
    found = resolve_serving(user.engine, user.additional_config["neuron_config"], model_config=CONFIG)
    assert found.neuron_config == asked.neuron_config and replace_blocks(found) == replace_blocks(asked)
    assert ("num_gpu_blocks_override" in engine) == (found.num_blocks == 99)


def replace_blocks(serving):
    return serving.model_copy(update={"num_gpu_blocks_override": 0})


def words_of(**engine) -> list[str]:
    made = resolve_serving(ENGINE | engine, NEURON, model_config=CONFIG)
    return serve_words(
        "m", made, MANIFEST.model_copy(update={"serving": made.as_manifest_serving(), "kv_cache": cache(made)})
    )


def cache(serving):
    return MANIFEST.kv_cache.model_copy(update={"num_blocks": serving.num_blocks})


def test_a_number_of_blocks_that_followed_from_the_rest_follows_again():
    default = resolve_serving({**ENGINE, "num_gpu_blocks_override": None}, NEURON, model_config=CONFIG).num_blocks
    assert "--num-gpu-blocks-override" not in words_of(num_gpu_blocks_override=default)
    assert "--num-gpu-blocks-override" in words_of(num_gpu_blocks_override=default + 1)


def test_the_target_its_core_size_and_the_config_are_named():
    manifest = MANIFEST.model_copy(update={"target": "trn2", "requires": {"logical_core_size": "2"}})
    told = build_command(bundle("a" * 64, manifest), ["vllm", "serve", "m"], model_config="/ci/config.json")
    assert shlex.split(told)[4:] == [
        "--target", "trn2", "--lnc", "2", "--model-config", "/ci/config.json", "--from-command", "vllm serve m",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [["vllm", "serve", "m", "--x", '{"a": "$b"}'], ["vllm", "serve", "it's `m`!\\"]])
def test_words_survive_both_shells(words):
    told = build_command(bundle(None), words)
    assert shlex.split(shlex.split(told)[-1]) == words


def test_what_no_compile_changes_is_not_built():
    result = compare(MANIFEST, config=CONFIG, engine=ENGINE | {"max_num_seqs": 8}, additional_config={})
    assert result.differences and can_be_built(result.differences)
    for engine in ({"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}, {"enable_lora": True}):
        assert not can_be_built(
            compare(MANIFEST, config=CONFIG, engine=ENGINE | engine, additional_config={}).differences
        )
    assert not can_be_built([*result.differences, Difference("worker_cls", "x", "y")])
