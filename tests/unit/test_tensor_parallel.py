"""Tensor parallelism: compiled programs of all ranks, run together in one process, against one rank and transformers."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from neuron_aot_runtime.contract.errors import LoweringError, RecipeError
from neuron_aot_runtime.contract.manifest import Artifact, Manifest, Program, Serving, TensorSpec
from neuron_aot_runtime.weights import read_param
from test_models import reference
from toy import decode_inputs, model_plan, prefill_inputs, program_plan

from neuron_aot.codegen import code_generator
from neuron_aot.execute import ProgramChecker
from neuron_aot.local_ranks import LocalRanks
from neuron_aot.lower import hlo_proto, lower_program
from neuron_aot.lower.hlo import lower_to_hlo
from neuron_aot.lower.preflight import check_hlo
from neuron_aot.lower.replicas import COLLECTIVES, replica_count, spell_groups
from neuron_aot.lower.rules import collectives as rules
from neuron_aot.make import default_toolchain
from neuron_aot.models import family
from neuron_aot.models.collectives import run_ranks
from neuron_aot.models.parallel import Ranks
from neuron_aot.pipeline import plan_shapes
from neuron_aot.recipe import load_recipe
from neuron_aot.targets import NEURON_TARGETS

LLAMA = family("LlamaForCausalLM")
BASE = {
    "hidden_size": 72, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
}  # fmt: skip
# SmolLM2's heads; a KV head that ranks share, evenly and not; sizes that no number of ranks divides.
MODELS = {
    "9 heads, 3 kv": {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True,
                      "vocab_size": 131, "intermediate_size": 101},
    "4 heads, 2 kv": {"attention_bias": True, "mlp_bias": True},
    "6 heads, 2 kv": {"num_attention_heads": 6, "vocab_size": 130, "intermediate_size": 90},
}  # fmt: skip
PROMPT, NEW = 21, 6


class TorchCheckpoint:
    """A transformers model as the weight map reads it."""

    def __init__(self, model) -> None:
        self._state = model.state_dict()

    def array(self, name: str) -> np.ndarray:
        return self._state[name].numpy()


@functools.cache
def model_of(name: str):
    """(transformers model, its config as saved)."""
    return reference(BASE | MODELS[name])


def made(plan, folder: Path) -> tuple[Program, Path]:
    """A plan's program, compiled for the cpu; each plan needs a folder of its own."""
    lowered = lower_program(plan, LLAMA.program(plan), LLAMA.layout(plan.model))
    artifact = folder / plan.name
    code_generator("cpu").generate(lowered.hlo, artifact)
    return program_of(plan, lowered.inputs, lowered.outputs), artifact


def program_of(plan, inputs, outputs) -> Program:
    return Program(
        name=plan.name, phase=plan.phase, bucket=plan.bucket, program_key="0" * 64, inputs=inputs, outputs=outputs,
        artifact=Artifact(format="xla-cpu", digest="sha256:" + "0" * 64, size=0),
    )  # fmt: skip


def manifest_of(plan, programs) -> Manifest:
    layout = LLAMA.layout(plan)
    return Manifest(
        target=plan.target, world_size=plan.world_size, model=layout.spec, serving=Serving(engine={}, neuron_config={}),
        kv_cache=layout.kv_cache, params=layout.params, states=layout.states, weight_map=layout.weight_map,
        programs=programs, requires={}, toolchain={},
    )  # fmt: skip


def generate(name: str, folder: Path, **parallel) -> list[list[torch.Tensor]]:
    """Each rank's output of every step: a prompt in two pieces, then ``NEW`` decoded tokens, the first rank's choices."""
    model, saved = model_of(name)
    prefill, decode = (program_plan(*shape, saved, **parallel) for shape in (("prefill", 16, 64), ("decode", 2, 64)))
    artifacts = {plan.phase: made(plan, folder) for plan in (prefill, decode)}
    manifest = manifest_of(prefill.model, [program for program, _ in artifacts.values()])
    world = range(manifest.world_size)
    checkpoint = TorchCheckpoint(model)
    entries = list(zip(manifest.weight_map, manifest.params, strict=True))
    ranks = LocalRanks(
        [
            {spec.name: to_torch(read_param(checkpoint, entry, spec, rank)[0]) for entry, spec in entries}
            for rank in world
        ]
    )
    states = [
        {spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in manifest.states}
        for _ in world
    ]
    steps, (output,) = [], [spec.name for spec in artifacts["decode"][0].outputs]

    def run(phase: str, inputs: dict) -> int:
        nonlocal states
        program, artifact = artifacts[phase]
        shared = {key: torch.from_numpy(array) for key, array in inputs.items()}
        own = [shared | {"rank": torch.tensor([rank], dtype=torch.int32)} for rank in world]
        found = ranks.run(manifest, program, artifact, states, own)
        states = [{spec.name: tensors[spec.name] for spec in manifest.states} for tensors in found]
        steps.append([tensors[output][0] for tensors in found])
        return int(steps[-1][0].argmax() if output == "logits" else steps[-1][0])

    blocks, tokens = [7, 3, 30, 12, 5, 9], prompt(saved["vocab_size"])
    run("prefill", prefill_inputs(tokens[:16], computed=0, size=16, context=64, blocks=blocks))
    token = run("prefill", prefill_inputs(tokens[16:], computed=16, size=16, context=64, blocks=blocks))
    for position in range(PROMPT, PROMPT + NEW):
        token = run("decode", decode_inputs([(token, position, blocks)], size=2, context=64))
    return steps


def to_torch(array: np.ndarray) -> torch.Tensor:
    if array.dtype != ml_dtypes.bfloat16:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)


def prompt(vocab_size: int) -> list[int]:
    return torch.randint(0, vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(1)).tolist()


@functools.cache
@torch.no_grad()
def transformers_logits(name: str) -> tuple[torch.Tensor, ...]:
    """transformers' logits at every step of ``generate``, by its own greedy choices."""
    model, saved = model_of(name)
    tokens = prompt(saved["vocab_size"])
    steps = [model(torch.tensor([tokens[:16]])).logits[0, -1]]
    for _ in range(1 + NEW):
        steps.append(model(torch.tensor([tokens])).logits[0, -1])
        tokens.append(int(steps[-1].argmax()))
    return tuple(steps)


@pytest.mark.parametrize(
    ("name", "world_size", "by_tokens"),
    [
        *((name, 1, False) for name in MODELS),
        ("9 heads, 3 kv", 2, True),
        ("9 heads, 3 kv", 4, True),
        ("4 heads, 2 kv", 2, False),
        ("4 heads, 2 kv", 4, True),
        ("6 heads, 2 kv", 4, False),
    ],
)
def test_any_number_of_ranks_equals_transformers_step_by_step(name, world_size, by_tokens, tmp_path):
    """So they equal one rank too, token by token: each step's token is the reference's choice, by a clear lead."""
    steps = generate(name, tmp_path, world_size=world_size, sequence_parallel=by_tokens)
    for found, wanted in zip(steps, transformers_logits(name), strict=True):
        assert len(found) == world_size
        for logits in found:
            assert torch.equal(logits, found[0]), "all ranks give the same"
            torch.testing.assert_close(logits, wanted, atol=2e-4, rtol=1e-4)
            assert logits.argmax() == wanted.argmax()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_in_bfloat16_any_number_of_ranks_stays_near_transformers_in_float32(world_size, tmp_path):
    """Ranks round their partial sums to bfloat16 before these are added."""
    steps = generate("9 heads, 3 kv", tmp_path, world_size=world_size, sequence_parallel=True, dtype="bfloat16")
    for found, wanted in zip(steps[:3], transformers_logits("9 heads, 3 kv"), strict=False):
        for logits in found:
            assert torch.equal(logits, found[0]), "all ranks give the same"
            assert (logits - wanted).norm() / wanted.norm() < 0.05


@pytest.mark.parametrize(("name", "world_size"), [("9 heads, 3 kv", 4), ("6 heads, 2 kv", 2)])
def test_greedy_tokens_over_the_divided_vocabulary_are_those_of_the_largest_logits(name, world_size, tmp_path):
    steps = generate(name, tmp_path, world_size=world_size, sequence_parallel=True, greedy=True)
    wanted = [int(logits.argmax()) for logits in transformers_logits(name)]
    assert [[int(token) for token in found] for found in steps] == [[token] * world_size for token in wanted]


def collectives_of(hlo: bytes) -> list:
    instructions = (item for part in hlo_proto.parse_module(hlo).computations for item in part.instructions)
    return [item for item in instructions if item.opcode in COLLECTIVES]


def counted(hlo: bytes) -> Counter:
    return Counter(item.opcode for item in collectives_of(hlo))


LAYERS = 2
EVERY_TOKEN_EVERYWHERE = Counter({"all-reduce": 2 * LAYERS + 1, "all-gather": 1})  # 1: embedding; sampling
TOKENS_DIVIDED = Counter(
    {"reduce-scatter": 2 * LAYERS + 1, "all-gather": 2 * LAYERS + 1, "all-reduce": 1}
)  # last token


@pytest.mark.parametrize(
    ("phase", "by_tokens", "wanted"),
    [
        ("decode", False, EVERY_TOKEN_EVERYWHERE),
        ("decode", True, EVERY_TOKEN_EVERYWHERE),
        ("prefill", False, EVERY_TOKEN_EVERYWHERE),
        ("prefill", True, TOKENS_DIVIDED),
    ],
)
@pytest.mark.parametrize("target", ["cpu", "trn2"])
def test_a_program_has_two_sums_a_layer_and_moves_no_more_than_it_must(phase, by_tokens, wanted, target):
    plan = program_plan(
        phase, 16, 64, BASE | MODELS["9 heads, 3 kv"],
        target=target, world_size=4, sequence_parallel=by_tokens, greedy=True, dtype="bfloat16",
    )  # fmt: skip
    hlo = lower_program(plan, LLAMA.program(plan), LLAMA.layout(plan.model)).hlo
    found = collectives_of(hlo)
    assert counted(hlo) == wanted
    for item in found:
        assert [list(group.replica_ids) for group in item.replica_groups] == [[0, 1, 2, 3]]
        assert not item.HasField("collective_device_list"), "older readers do not know it"
        assert hlo_proto.element_type(item.shape) in ("bf16", "f32")
    (sampling,) = (item for item in found if hlo_proto.element_type(item.shape) == "f32")
    rows = 1 if phase == "prefill" else 16
    assert (sampling.opcode, list(sampling.shape.dimensions)) == ("all-gather", [rows, 2 * 4]), "pairs, not logits"
    if target != "cpu":
        assert check_hlo(hlo, NEURON_TARGETS[target], program=plan.name) == []


def test_one_rank_has_no_collective_and_no_rank():
    plan = program_plan("prefill", 16, 64, BASE, greedy=True)
    lowered = lower_program(plan, LLAMA.program(plan), LLAMA.layout(plan.model))
    assert not collectives_of(lowered.hlo) and replica_count(lowered.hlo) == 1
    assert "rank" not in {spec.name for spec in lowered.inputs}


def test_a_collective_of_integers_is_refused():
    for name in rules.RULES:
        numbers = {"neuron_aot.all_reduce.default": (2,), "neuron_aot.all_to_all.default": (0, 0, 2)}.get(name, (0, 2))
        with pytest.raises(LoweringError, match="NCC_EVRF061"):
            rules.RULES[name](np.zeros(4, np.int32), *numbers)


def test_each_collective_is_the_same_compiled_as_in_pytorch(tmp_path):
    """All in one program, over four ranks; all_to_all is in no model yet."""
    numbers = {"all_reduce": (4,), "all_gather": (1, 4), "reduce_scatter": (1, 4), "all_to_all": (1, 0, 4)}
    parts = [torch.randn(4, 8, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]

    def definition(rank):
        return {name: getattr(torch.ops.neuron_aot, name)(parts[rank], *of) for name, of in numbers.items()}

    wanted = run_ranks(4, definition)
    x = TensorSpec(name="x", role="input", shape=(4, 8), dtype="float32")
    rank = TensorSpec(name="rank", role="input", shape=(1,), dtype="int32")
    outputs = tuple(
        TensorSpec(name=name, role="output", shape=tuple(tensor.shape), dtype="float32")
        for name, tensor in wanted[0].items()
    )
    hlo, _ = lower_to_hlo(
        lambda x, rank: tuple(rules.RULES[f"neuron_aot.{name}.default"](x, *of) for name, of in numbers.items()),
        [x, rank], {},
    )  # fmt: skip
    artifact = tmp_path / "artifact"
    code_generator("cpu").generate(spell_groups(hlo), artifact)
    plan = program_plan("decode", 1, 8, BASE, world_size=4)
    program = program_of(plan, (x, rank), outputs)
    manifest = manifest_of(plan.model, [program]).model_copy(update={"params": (), "states": ()})
    steps = [{"x": parts[rank], "rank": torch.tensor([rank], dtype=torch.int32)} for rank in range(4)]
    for found, rank_wanted in zip(
        LocalRanks([{}] * 4).run(manifest, program, artifact, [{}] * 4, steps), wanted, strict=True
    ):
        torch.testing.assert_close(found, rank_wanted)


def test_of_equal_logits_the_lowest_token_is_chosen_whatever_rank_has_it():
    """As argmax does. Vocabulary 5 over 4 ranks: parts of 2, 2, 1 and nothing, with zeros where padding is."""
    plan = program_plan("decode", 3, 8, BASE | {"vocab_size": 5}, world_size=4, greedy=True)
    rows = torch.tensor([[-3.0, -2.0, -2.0, -5.0, -2.0], [-9.0, -8.0, -8.0, -8.0, -7.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    padded = torch.nn.functional.pad(rows, (0, 3))  # a padded row of the LM head gives 0, above all of the first rows

    def sampled(rank):
        ranks = Ranks(plan, {"rank": torch.tensor([rank], dtype=torch.int32)})
        return ranks.sample(padded[:, 2 * rank : 2 * rank + 2], 5, greedy=True)["tokens"]

    assert all(tokens.tolist() == rows.argmax(-1).tolist() == [1, 4, 0] for tokens in run_ranks(4, sampled))


def test_a_vocabulary_whose_ids_float32_cannot_hold_is_refused():
    plan = program_plan("decode", 1, 8, BASE, world_size=2, greedy=True)
    with pytest.raises(RecipeError, match="exact below 2") as refused:
        Ranks(plan, {"rank": torch.zeros(1, dtype=torch.int32)}).sample(torch.zeros(1, 2), (1 << 24) + 1, greedy=True)
    assert refused.value.next_command


def test_all_ranks_are_compared_with_their_definition_and_a_lost_sum_is_noticed(tmp_path, monkeypatch):
    plan = program_plan("decode", 2, 64, BASE, world_size=2, dtype="bfloat16", target="trn2")
    program, artifact = made(plan, tmp_path)
    checker = ProgramChecker(manifest_of(plan.model, [program]), LLAMA.layout(plan.model))
    assert checker.check(plan, program, artifact).ok
    monkeypatch.setattr(Ranks, "combine", lambda self, partial: partial)
    assert not checker.check(plan, program, artifact).ok


@pytest.mark.parametrize(
    ("ranks", "what", "length"),
    [(16, "num_attention_heads", 9), (5, "intermediate_size", 4), (8, "vocab_size", 7)],
)
def test_ranks_that_cannot_split_the_model_are_refused_with_both_numbers(ranks, what, length):
    config = BASE | {"num_attention_heads": 9, "num_key_value_heads": 3} | {what: length}
    with pytest.raises(RecipeError) as refused:
        LLAMA.layout(model_plan(config, world_size=ranks))
    assert f"tensor_parallel_size {ranks} cannot split a model with {what} {length}" in str(refused.value)
    assert refused.value.next_command


def test_a_70b_recipe_at_32_ranks_is_planned_and_passes_preflight():
    """Two of its layers are lowered here; all 80 differ in number only (and take two minutes)."""
    recipe = load_recipe(Path(__file__).parents[2] / "recipes" / "llama-3.3-70b-trn2.yaml")
    toolchain = default_toolchain()
    shapes = plan_shapes(recipe, toolchain)
    assert [program.name for program in shapes.grid.programs] == [
        "prefill_s2048_c2048", "prefill_s2048_c4096",
        *(f"decode_b{size}_c4096" for size in (1, 2, 4, 8)),
    ]  # fmt: skip
    layout = LLAMA.layout(shapes.model)
    assert shapes.model.world_size == 32 and shapes.model.sequence_parallel
    assert layout.kv_cache.num_kv_heads == 1, "four ranks share a KV head"
    assert 141e9 / 32 < shapes.memory.weights_bytes < 1.1 * 141e9 / 32
    short = replace(recipe, model_config=recipe.model_config | {"num_hidden_layers": 2})
    for plan in plan_shapes(short, toolchain).grid.programs:
        hlo = toolchain.lower_plan(plan).hlo
        assert toolchain.preflight(plan, hlo) == []
        assert counted(hlo) == (TOKENS_DIVIDED if plan.phase == "prefill" else EVERY_TOKEN_EVERYWHERE)
        assert replica_count(hlo) == 32
