"""The serving configuration's defaults and rules, as the configuration reference states them."""

from __future__ import annotations

import pytest
from neuron_aot_runtime.contract.errors import ConfigError
from neuron_aot_runtime.contract.manifest import Bucket
from neuron_aot_runtime.contract.serving import ServingConfig, resolve_serving

MODEL = {"torch_dtype": "bfloat16", "max_position_embeddings": 4096}


def resolve(engine=None, neuron=None, model=MODEL) -> ServingConfig:
    return resolve_serving(engine or {}, neuron or {}, model_config=model)


def violations(engine=None, neuron=None, model=MODEL) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(engine, neuron, model)
    return "\n".join(caught.value.details)


def test_defaults():
    config = resolve()
    assert (config.dtype, config.kv_dtype, config.max_model_len) == ("bfloat16", "bfloat16", 4096)
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.block_size) == (2048, 8, 32)
    assert config.num_blocks == 8 * 128 + 1
    assert config.enable_prefix_caching and not config.greedy
    assert config.neuron_config.num_batched_tokens_buckets == (128, 256, 512, 1024, 2048)
    assert config.neuron_config.num_seqs_buckets == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("tokens", "buckets"), [(64, (64,)), (128, (128,)), (1000, (128, 256, 512, 1000)), (1024, (128, 256, 512, 1024))]
)
def test_token_buckets_default_to_powers_of_two_and_the_limit(tokens, buckets):
    config = resolve({"max_num_batched_tokens": tokens})
    assert config.neuron_config.num_batched_tokens_buckets == buckets


def test_limits_follow_explicit_buckets():
    config = resolve({}, {"num_batched_tokens_buckets": [512, 1024], "num_seqs_buckets": [1, 3]})
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (1024, 3)
    segmented = resolve({}, {"kv_segment_size_buckets": [512]})
    assert segmented.neuron_config.num_batched_tokens_buckets == (512,)


def test_ranks_divide_prefill_tokens_where_they_can():
    assert not resolve().sequence_parallel
    assert resolve({"tensor_parallel_size": 2}).sequence_parallel
    assert not resolve({"tensor_parallel_size": 2}, {"sequence_parallel_enabled": False}).sequence_parallel
    assert not resolve({"tensor_parallel_size": 3}).sequence_parallel


def test_a_short_model_gets_small_defaults():
    config = resolve(model={"dtype": "float32", "max_position_embeddings": 512})
    assert (config.dtype, config.max_num_batched_tokens) == ("float32", 512)


@pytest.mark.parametrize(
    ("engine", "neuron", "told"),
    [
        (
            {"max_num_batched_tokens": 512},
            {"num_batched_tokens_buckets": [128, 256]},
            "equal to max_num_batched_tokens",
        ),
        ({"max_num_seqs": 8}, {"num_seqs_buckets": [1, 4]}, "equal to max_num_seqs (8)"),
        ({}, {"num_seqs_buckets": [4, 2, 8]}, "strictly ascending"),
        ({}, {"num_seqs_buckets": [1, 1, 8]}, "strictly ascending"),
        ({}, {"num_seqs_buckets": []}, "a list of positive whole numbers"),
        ({}, {"num_seqs_buckets": [True, 8]}, "a list of positive whole numbers"),
        ({}, {"num_seqs_buckets": "8"}, "a list of positive whole numbers"),
        ({}, {"decode_context_length_buckets": [4096]}, "below max_model_len (4096"),
        ({}, {"decode_context_length_buckets": [512, 100]}, "strictly ascending"),
        ({}, {"decode_context_length_buckets": [100]}, "multiples of 128"),
        ({"block_size": 256}, {"prefill_context_length_buckets": [128]}, "multiples of 256"),
        ({"block_size": 24}, {}, "a power of two"),
        ({}, {"kv_segment_size_buckets": [256]}, "sizes out of 512, 1024"),
        ({}, {"kv_segment_size_buckets": [512, 1024]}, "a single segment size"),
        (
            {"max_num_batched_tokens": 1024},
            {"kv_segment_size_buckets": [512], "num_batched_tokens_buckets": [1024]},
            "the same sizes as num_batched_tokens_buckets",
        ),
        ({"block_size": 1024}, {"kv_segment_size_buckets": [512]}, "divisible by block_size (1024)"),
        ({"max_num_batched_tokens": 4}, {}, "at least max_num_seqs (8)"),
        ({"num_gpu_blocks_override": 128}, {}, "at least 129"),
        ({"max_model_len": 8192}, {}, "at most 4096"),
        ({"max_model_len": "4k"}, {}, "a positive whole number"),
        ({"max_num_seqs": 0}, {}, "a positive whole number"),
        ({"gpu_memory_utilization": 0}, {}, "above 0 and at most 1, found 0"),
        ({"gpu_memory_utilization": 7}, {}, "above 0 and at most 1, found 7"),
        ({"gpu_memory_utilization": float("inf")}, {}, "above 0 and at most 1"),
        ({"gpu_memory_utilization": "most"}, {}, "above 0 and at most 1, found 'most'"),
        ({"dtype": "float16"}, {}, "float16 is not supported"),
        ({"dtype": "int8"}, {}, "auto, float32 or bfloat16"),
        ({"kv_cache_dtype": "fp8"}, {}, "fp8 is not supported yet"),
        ({"tensor_parallel_size": 0}, {}, "a positive whole number"),
        ({"tensor_parallel_size": 3}, {"sequence_parallel_enabled": True}, "that tensor_parallel_size 3 divides"),
        ({}, {"sequence_parallel_enabled": True}, "nothing to divide with a tensor_parallel_size of 1"),
        ({"tensor_parallel_size": 2}, {"sequence_parallel_enabled": 1}, "true or false"),
        ({"enable_prefix_caching": "yes"}, {}, "true or false"),
        ({}, {"on_device_sampling_config": {"temperature": "0.7"}}, "greedy only"),
        ({}, {"on_device_sampling_config": {"all_greedy": True, "topk": 1}}, "nearest valid name is top_k"),
        ({}, {"quantization": "mxfp4"}, "not supported yet"),
        ({"quantization": "fp8"}, {}, "not supported yet"),
        ({"enable_lora": True}, {}, "LoRA is not supported yet"),
    ],
)
def test_each_rule(engine, neuron, told):
    assert told in violations(engine, neuron)


@pytest.mark.parametrize(
    ("engine", "neuron", "told"),
    [
        (
            {"num_seqs_buckets": [1]},
            {},
            "engine.num_seqs_buckets: is not an option of vLLM's engine; it belongs under neuron",
        ),
        (
            {},
            {"block_size": 32},
            "neuron_config.block_size: is not an option of neuron_config; it is a vLLM engine argument",
        ),
        ({}, {"mm_language_model_only": True}, "belongs at the top level of additional_config"),
        ({}, {"num_seq_buckets": [8]}, "nearest valid name is num_seqs_buckets"),
        ({"max-model-len": 4096}, {}, "nearest valid name is max_model_len"),
        ({"model": "x"}, {}, "top level of the recipe"),
        ({"additional_config": {}}, {}, "write neuron_config at the top level"),
        ({}, {"all_greedy": True}, "belongs under neuron_config.on_device_sampling_config"),
        ({}, {"vision_neuron_config": {}}, "multimodal models"),
    ],
)
def test_misplaced_and_misspelt_options_are_told_where_they_belong(engine, neuron, told):
    assert told in violations(engine, neuron)


def test_all_violations_come_at_once():
    text = violations({"dtype": "half", "block_size": 33, "blocksize": 1}, {"num_seqs_buckets": [2, 1]})
    assert len(text.splitlines()) == 4


def test_a_model_without_a_dtype_or_a_length_must_be_told():
    assert "set float32 or bfloat16" in violations(model={"max_position_embeddings": 64})
    assert "set it" in violations(model={"dtype": "bfloat16"})


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "llama3", "factor": 8.0}, 4096),
        ({"rope_type": "linear", "factor": 2.0}, 8192),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
    ],
)
def test_max_model_len_follows_rope_scaling(rope, longest):
    assert resolve(model=MODEL | {"rope_scaling": rope}).max_model_len == longest


@pytest.mark.parametrize("sampling", [{"all_greedy": True}, {"temperature": "0"}, {"temperature": 0}, {"top_k": 1}])
def test_greedy_sampling_has_one_form(sampling):
    config = resolve({}, {"on_device_sampling_config": sampling})
    assert config.greedy and config.neuron_config.on_device_sampling_config == {"all_greedy": True}


def test_prefill_buckets_take_their_own_context_and_larger_ones():
    config = resolve({"max_model_len": 2048, "max_num_batched_tokens": 256}, {"prefill_context_length_buckets": [512]})
    pairs = [(bucket.size, bucket.context) for bucket in config.prefill_buckets()]
    assert pairs == [(128, 128), (128, 512), (128, 2048), (256, 256), (256, 512), (256, 2048)]


def test_buckets_round_up_to_blocks_and_end_at_the_model_length():
    config = resolve({"max_model_len": 300, "max_num_batched_tokens": 1000, "max_num_seqs": 1})
    assert config.prefill_buckets() == [
        Bucket(size=128, context=128),
        Bucket(size=128, context=320),
        Bucket(size=256, context=256),
        Bucket(size=256, context=320),
        Bucket(size=512, context=512),
    ]
    assert config.decode_buckets() == [Bucket(size=1, context=320)]


def test_decode_buckets_have_the_implicit_longest_context():
    config = resolve({"max_num_seqs": 2}, {"decode_context_length_buckets": [512, 1024]})
    pairs = [(bucket.size, bucket.context) for bucket in config.decode_buckets()]
    assert pairs == [(1, 512), (1, 1024), (1, 4096), (2, 512), (2, 1024), (2, 4096)]


def test_the_manifest_form_is_canonical_and_reversible_and_resolves_to_itself():
    config = resolve(
        {"gpu_memory_utilization": 0.9, "served_model_name": "m"}, {"decode_context_length_buckets": [512]}
    )
    serving = config.as_manifest_serving()
    assert serving.engine["gpu_memory_utilization"] == "0.9" and serving.engine["num_gpu_blocks_override"] == 1025
    assert ServingConfig.from_manifest(serving) == config
    assert resolve(serving.engine, serving.neuron_config) == config
