import sys
from pathlib import Path

import pytest
from neuron_aot_runtime.contract.errors import BundleMissError, ConfigError
from neuron_aot_runtime.vllm.check import compare

sys.path.insert(0, str(Path(__file__).parents[1] / "inproc"))
from fake_bundle import CONFIG, ENGINE, NEURON, make_manifest

MANIFEST = make_manifest()


def differences(*, manifest=MANIFEST, config=(), engine=(), additional=()):
    result = compare(
        manifest,
        config={**CONFIG, **dict(config)},
        engine={**ENGINE, **dict(engine)},
        additional_config=dict(additional),
    )
    assert not result.misuse
    return {difference.field: (difference.wanted, difference.found) for difference in result.differences}


def test_what_the_bundle_was_made_for_has_no_difference():
    assert differences() == {}
    assert differences(additional={"neuron_config": NEURON}) == {}
    assert differences(engine={name: None for name in ENGINE}) == {}, "nothing asked is nothing different"


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_model_len", 128), ("max_num_batched_tokens", 128), ("max_num_seqs", 8), ("block_size", 32),
     ("num_gpu_blocks_override", 40), ("dtype", "bfloat16"), ("tensor_parallel_size", 2)],
)  # fmt: skip
def test_each_engine_argument_is_compared(name, value):
    found = differences(engine={name: value})
    assert found[name] == (value, MANIFEST.serving.engine[name])


def test_a_larger_limit_names_the_programs_that_are_missing():
    found = differences(engine={"max_num_seqs": 8})
    assert set(found) == {"max_num_seqs", "program decode_b2_c128", "program decode_b2_c256", "program decode_b8_c128",
                          "program decode_b8_c256"}  # fmt: skip
    found = differences(engine={"max_num_batched_tokens": 200})
    assert "program prefill_s200_c256" in found


def test_a_bundle_that_lost_a_program_does_not_serve_its_own_configuration():
    kept = [program for program in MANIFEST.programs if program.name != "decode_b4_c256"]
    manifest = MANIFEST.model_copy(update={"programs": tuple(kept)})
    assert list(differences(manifest=manifest)) == ["program decode_b4_c256"]


def test_the_model_is_compared_by_its_facts():
    assert differences(config={"_name_or_path": "a fine-tune", "transformers_version": "9"}) == {}
    found = differences(config={"hidden_size": 128, "architectures": ["MistralForCausalLM"]})
    assert found["architecture"] == ("MistralForCausalLM", "LlamaForCausalLM")
    assert found["config.json hidden_size"] == (128, 64)


def test_auto_and_its_outcome_are_the_same_cache():
    assert differences(engine={"kv_cache_dtype": "auto"}) == {}
    assert differences(engine={"kv_cache_dtype": "float32"}) == {}
    assert differences(engine={"kv_cache_dtype": "fp8"}) == {"kv_cache_dtype": ("fp8", "auto")}


def test_neuron_config_is_compared_after_its_defaults():
    neuron = {name: value for name, value in NEURON.items() if name != "decode_context_length_buckets"}
    found = differences(additional={"neuron_config": neuron})
    assert found == {"neuron_config.decode_context_length_buckets": (None, [128])}
    found = differences(additional={"neuron_config": {**NEURON, "on_device_sampling_config": {"all_greedy": True}}})
    assert found == {"neuron_config.on_device_sampling_config": ({"all_greedy": True}, None)}


@pytest.mark.parametrize(
    ("additional", "line"),
    [
        ({"neuron_confg": {}}, "neuron_confg: unknown; the nearest valid name is neuron_config"),
        ({"num_seqs_buckets": [1, 4]}, "num_seqs_buckets: is not an option of additional_config; it belongs under"),
        ({"neuron_config": {"block_size": 16}}, "block_size: is not an option of neuron_config; it is a vLLM engine"),
        ({"neuron_config": {"num_seqs_buckets": [4, 1]}}, "num_seqs_buckets: wanted strictly ascending"),
        ({"neuron_config": [1]}, "neuron_config: wanted a mapping"),
        ({"mm_language_model_only": True}, "mm_language_model_only"),
    ],
)
def test_misuse_says_where_an_option_belongs(additional, line):
    result = compare(MANIFEST, config=CONFIG, engine=ENGINE, additional_config=additional)
    assert any(line in found for found in result.misuse), result.misuse
    with pytest.raises(ConfigError) as raised:
        result.raise_if_any(reference="store@ref", next_command="next")
    assert raised.value.exit_code == 2


def test_every_difference_is_in_one_error():
    result = compare(
        MANIFEST,
        config={**CONFIG, "hidden_size": 128},
        engine={**ENGINE, "dtype": "bfloat16", "enable_lora": True},
        additional_config={},
    )
    with pytest.raises(BundleMissError) as raised:
        result.raise_if_any(reference="store@ref", next_command="neuron-aot compile …")
    error = raised.value
    assert error.exit_code == 3
    assert error.message == "the bundle store@ref does not serve what was asked for: 3 differences"
    assert error.details[:2] == (
        "config.json hidden_size: wanted 128, the bundle has 64",
        "dtype: wanted 'bfloat16', the bundle has 'float32'",
    )
    assert "enable_lora" in error.details[2]
    assert error.next_command == "neuron-aot compile …"
