"""KV cache sizing: the rule of the features guide, exactly, and every refusal."""

from __future__ import annotations

from fractions import Fraction

import pytest
from neuron_aot_runtime.contract.errors import RecipeError, UsageError
from neuron_aot_runtime.contract.serving import resolve_serving
from toy import model_plan

from neuron_aot.models import family
from neuron_aot.plan import budget_lines, check_budget, memory_budget
from neuron_aot.settings import read_settings
from neuron_aot.targets import NEURON_TARGETS

CONFIG = {"dtype": "bfloat16", "max_position_embeddings": 256}
LAYOUT = family("LlamaForCausalLM").layout(model_plan(dtype="bfloat16"))
WEIGHTS = sum(spec.nbytes for spec in LAYOUT.params)
BLOCK = 2 * 2 * (2 * 8 * 16) * 2  # layers, K and V, heads x block size x head size, bfloat16


def budget(device_bytes, *, given=False, cap="0.30", **engine):
    serving = resolve_serving({"block_size": 8, "max_num_batched_tokens": 128} | engine, {}, model_config=CONFIG)
    made = memory_budget(serving, LAYOUT, device_bytes=device_bytes, blocks_given=given, kv_cap=Fraction(cap))
    return made, serving


def test_the_rule_by_hand():
    made, _ = budget(10**9)
    assert (made.budget_bytes, made.weights_bytes, made.block_bytes) == (900_000_000, WEIGHTS, BLOCK)
    assert made.kv_available_bytes == 270_000_000  # the cap: 0.30 * 0.9
    assert made.num_blocks == 270_000_000 // BLOCK and made.sized_by == "memory"
    assert made.kv_bytes == made.num_blocks * BLOCK
    assert made.left_bytes == 10**9 - WEIGHTS - made.kv_bytes


def test_weights_come_first_where_they_are_large():
    made, _ = budget(WEIGHTS * 2, cap="1")
    assert made.kv_available_bytes == int(WEIGHTS * 2 * Fraction("0.9")) - WEIGHTS


def test_utilization_and_cap_are_exact():
    made, _ = budget(10**9, gpu_memory_utilization=0.7, cap="0.1")
    assert (made.budget_bytes, made.kv_available_bytes) == (700_000_000, 70_000_000)


def test_an_override_replaces_the_rule():
    made, serving = budget(10**9, given=True, num_gpu_blocks_override=40)
    assert (made.num_blocks, made.sized_by) == (40, "num_gpu_blocks_override")
    check_budget(made, serving, min_kv_gib=Fraction(1))
    assert any("40 blocks" in line for line in budget_lines(made))


@pytest.mark.parametrize(
    ("device_bytes", "options", "minimum", "told"),
    [
        (WEIGHTS, {}, 0, "the weights alone do not fit"),
        (10**9, {}, 1, "KV cache budget below minimum threshold (1 GiB)"),
        (WEIGHTS * 2, {"given": True, "num_gpu_blocks_override": 10**5}, 0, "weights and KV cache do not fit"),
        (WEIGHTS * 2, {"cap": "0.01"}, 0, "one sequence needs 33"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_budget(device_bytes, options, minimum, told):
    made, serving = budget(device_bytes, **options)
    with pytest.raises(RecipeError) as caught:
        check_budget(made, serving, min_kv_gib=Fraction(minimum))
    assert told in caught.value.message and "weights" in str(caught.value) and caught.value.next_command


def test_memory_per_logical_core():
    table = {(name, size): memory for name, target in NEURON_TARGETS.items() for size, memory in target.memory.items()}
    gb = 10**9
    assert table == {
        ("inf2", 1): 16 * gb, ("trn1", 1): 16 * gb, ("trn1n", 1): 16 * gb,
        ("trn2", 2): 24 * gb, ("trn2", 1): 12 * gb, ("trn3", 2): 36 * gb, ("trn3", 1): 18 * gb,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wanted", "size"), [("trn2", None, 2), ("trn3", 1, 1), ("trn1", None, 1), ("inf2", 1, 1)]
)
def test_logical_core_sizes(name, wanted, size):
    assert NEURON_TARGETS[name].core_size(wanted) == size


def test_large_logical_cores_are_refused_where_there_are_none():
    with pytest.raises(UsageError, match="NCC_EARG001"):
        NEURON_TARGETS["trn1"].core_size(2)


def test_settings_by_their_documented_names():
    found = read_settings(
        {
            "NEURON_CC_FLAGS": "-O1",
            "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
            "NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS": "4",
            "NEURON_LIBTORCH_COMPILATION_TIMEOUT": "60",
            "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION": "0.35",
            "VLLM_NEURON_MIN_KV_BUDGET_GIB": "0.5",
        }
    )
    assert (found.cc_flags, found.target, found.workers, found.timeout) == ("-O1", "trn2", 4, 60)
    assert (found.kv_cap, found.min_kv_gib) == (Fraction(35, 100), Fraction(1, 2))
    default = read_settings({})
    assert (default.kv_cap, default.min_kv_gib, default.workers) == (Fraction(3, 10), 1, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS", "many"),
        ("NEURON_LIBTORCH_COMPILATION_TIMEOUT", "0"),
        ("VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION", "2"),
        ("VLLM_NEURON_MIN_KV_BUDGET_GIB", "-1"),
    ],
)
def test_a_wrong_setting_is_named(name, value):
    with pytest.raises(UsageError, match=name):
        read_settings({name: value})
