import numpy as np
import pytest
from neuron_aot_runtime.batch import Batcher, NoBucketError, Slots
from neuron_aot_runtime.contract.buckets import program_name
from neuron_aot_runtime.contract.manifest import (
    Artifact,
    Bucket,
    KVCacheSpec,
    Manifest,
    ModelSpec,
    Program,
    Serving,
    TensorSpec,
)  # fmt: skip

BLOCK = 16


def spec(name, shape, dtype="int32", role="input"):
    return TensorSpec(name=name, role=role, shape=shape, dtype=dtype)


def program(phase, size, context):
    table = context // BLOCK
    inputs = (
        (
            spec("token_ids", (size,)),
            spec("num_computed_tokens", (1,)),
            spec("num_tokens", (1,)),
            spec("block_table", (table,)),
        )
        if phase == "prefill"
        else (spec("token_ids", (size,)), spec("positions", (size,)), spec("block_tables", (size, table)))
    )
    rows = 1 if phase == "prefill" else size
    return Program(
        name=program_name(phase, Bucket(size=size, context=context)),
        phase=phase,
        bucket=Bucket(size=size, context=context),
        program_key="0" * 64,
        artifact=Artifact(format="none", digest="sha256:" + "0" * 64, size=0),
        inputs=inputs,
        outputs=(spec("logits", (rows, 8), "float32", "output"),),
    )


@pytest.fixture
def batcher():
    programs = [program("prefill", size, context) for size, context in ((32, 32), (32, 128), (64, 64), (64, 128))]
    programs += [program("decode", size, context) for size in (1, 2, 4) for context in (64, 128)]
    manifest = Manifest(
        target="cpu",
        world_size=1,
        model=ModelSpec(architecture="X", facts=(), vocab_size=8, hidden_size=1),
        serving=Serving(engine={}, neuron_config={}),
        kv_cache=KVCacheSpec(
            num_layers=1, num_blocks=20, block_size=BLOCK, num_kv_heads=1, head_size=1, dtype="float32"
        ),
        params=(),
        states=(),
        weight_map=(),
        programs=programs,
        requires={},
        toolchain={},
    )
    slots = Slots(num_slots=4, max_model_len=120, block_size=BLOCK)
    return Batcher(manifest, slots), slots


def filled(slots, tokens, blocks):
    slot = slots.take()
    slots.set_tokens(slot, tokens)
    slots.set_blocks(slot, blocks)
    return slot


@pytest.mark.parametrize(
    ("computed", "count", "name"),
    [
        (0, 5, "prefill_s32_c32"),
        (0, 32, "prefill_s32_c32"),
        (1, 32, "prefill_s32_c128"),
        (0, 33, "prefill_s64_c64"),
        (64, 40, "prefill_s64_c128"),
    ],
)
def test_prefill_takes_the_smallest_fitting_bucket(batcher, computed, count, name):
    batcher, slots = batcher
    slot = filled(slots, list(range(1, 121)), [5, 6, 7, 8, 9, 10, 11, 12])
    step = batcher.prefill(slot, num_computed=computed, num_tokens=count)
    assert step.program.name == name
    assert step.padding == step.program.bucket.size - count
    tokens = step.inputs["token_ids"]
    assert tokens[:count].tolist() == list(range(computed + 1, computed + count + 1))
    assert not tokens[count:].any()
    assert step.inputs["num_computed_tokens"].tolist() == [computed]
    assert step.inputs["num_tokens"].tolist() == [count]
    table = step.inputs["block_table"]
    assert table.tolist() == [5, 6, 7, 8, 9, 10, 11, 12][: len(table)]


def test_decode_pads_with_the_null_block(batcher):
    batcher, slots = batcher
    rows = [filled(slots, [10 * n + i for i in range(60)], [n, n + 1, n + 2, n + 3]) for n in (1, 5, 9)]
    step = batcher.decode(rows, [3, 59, 17])
    assert step.program.name == "decode_b4_c64"
    assert step.padding == 1
    assert step.inputs["token_ids"].tolist() == [13, 109, 107, 0]
    assert step.inputs["positions"].tolist() == [3, 59, 17, 0]
    assert step.inputs["block_tables"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [0, 0, 0, 0]]


def test_decode_context_follows_the_longest_sequence(batcher):
    batcher, slots = batcher
    slot = filled(slots, [1] * 65, [1, 2, 3, 4, 5])
    assert batcher.decode([slot], [63]).program.name == "decode_b1_c64"
    step = batcher.decode([slot], [64])
    assert step.program.name == "decode_b1_c128"
    assert step.inputs["block_tables"].tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]]


def test_a_bucket_used_again_shows_nothing_of_the_last_step(batcher):
    batcher, slots = batcher
    rows = [filled(slots, [7] * 60, [n, n, n, n]) for n in (1, 2, 3, 4)]
    batcher.decode(rows, [50, 50, 50, 50])
    step = batcher.decode(rows[:3], [9, 9, 9])
    assert step.inputs["block_tables"][3].tolist() == [0, 0, 0, 0]
    assert step.inputs["token_ids"][3] == step.inputs["positions"][3] == 0


def test_a_slot_taken_again_has_no_blocks_of_the_last_sequence(batcher):
    batcher, slots = batcher
    slot = filled(slots, [1] * 100, [1, 2, 3, 4, 5, 6, 7])
    slots.append_blocks(slot, [8])
    slots.release(slot)
    again = slots.take()
    assert again == slot
    slots.set_blocks(again, [9, 10])
    slots.append_blocks(again, [11])
    assert slots.blocks_SM[again].tolist() == [9, 10, 11, 0, 0, 0, 0, 0]


def test_what_no_program_holds_is_an_error(batcher):
    batcher, slots = batcher
    slot = filled(slots, [1] * 120, [1] * 8)
    with pytest.raises(NoBucketError, match="no prefill program holds 65"):
        batcher.prefill(slot, num_computed=0, num_tokens=65)
    with pytest.raises(NoBucketError, match="decode"):
        batcher.decode([slot] * 5, [0] * 5)


def test_inputs_have_the_programs_dtypes(batcher):
    batcher, slots = batcher
    slot = filled(slots, [1] * 5, [1])
    step = batcher.prefill(slot, num_computed=0, num_tokens=5)
    assert {array.dtype for array in step.inputs.values()} == {np.dtype(np.int32)}
