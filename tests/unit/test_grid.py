"""The grid: what is made, in which order, and why the rest is not."""

from __future__ import annotations

from neuron_aot_runtime.contract.serving import resolve_serving

from neuron_aot.plan import plan_programs
from neuron_aot.program import ModelPlan

MODEL = ModelPlan(
    target="cpu", architecture="A", facts=(), dtype="float32", kv_dtype="float32", block_size=32, num_blocks=9
)


def grid(engine, neuron=None):
    config = {"dtype": "float32", "max_position_embeddings": 4096}
    return plan_programs(resolve_serving(engine, neuron or {}, model_config=config), MODEL)


def test_prefill_comes_before_decode_and_small_before_large():
    made = grid({"max_model_len": 1024, "max_num_batched_tokens": 256, "max_num_seqs": 2})
    assert [program.name for program in made.programs] == [
        "prefill_s128_c128",
        "prefill_s128_c1024",
        "prefill_s256_c256",
        "prefill_s256_c1024",
        "decode_b1_c1024",
        "decode_b2_c1024",
    ]
    assert made.dropped == ()


def test_unreachable_shapes_are_dropped_with_a_reason():
    made = grid({"max_model_len": 200, "max_num_batched_tokens": 512, "max_num_seqs": 1})
    assert [program.name for program in made.programs if program.phase == "prefill"] == [
        "prefill_s128_c128",
        "prefill_s128_c224",
        "prefill_s256_c256",
    ]
    reasons = {drop.name: drop.reason for drop in made.dropped}
    assert "already holds max_model_len (200)" in reasons["prefill_s512_c512"]
    assert "do not fit a context of 224" in reasons["prefill_s256_c224"]


def test_every_step_up_to_the_model_length_has_a_program():
    config = {"dtype": "float32", "max_position_embeddings": 4096}
    from neuron_aot_runtime.contract.buckets import smallest_fitting

    for length in (100, 128, 129, 1000, 1024, 4096):
        for batched in (64, 128, 300, 512, 2048):
            serving = resolve_serving(
                {"max_model_len": length, "max_num_batched_tokens": batched}, {}, model_config=config
            )
            buckets = serving.prefill_buckets()
            assert len(set(buckets)) == len(buckets)
            for tokens in {1, min(batched, length)}:
                for context in {tokens, length}:
                    assert smallest_fitting(buckets, size=tokens, context=context), (length, batched, tokens, context)
            for seqs in (1, serving.max_num_seqs):
                assert smallest_fitting(serving.decode_buckets(), size=seqs, context=length)


def test_a_bucket_is_used_up_to_its_edge():
    from neuron_aot_runtime.contract.buckets import program_name, smallest_fitting

    serving = resolve_serving({"max_model_len": 2048}, {}, model_config={"dtype": "float32"})
    name = program_name("prefill", smallest_fitting(serving.prefill_buckets(), size=128, context=128))
    assert name == "prefill_s128_c128"
    name = program_name("prefill", smallest_fitting(serving.prefill_buckets(), size=129, context=129))
    assert name == "prefill_s256_c256"
