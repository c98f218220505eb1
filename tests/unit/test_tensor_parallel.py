"""Tensor parallelism: compiled programs of all ranks, run together in one process, against one rank and transformers."""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from neuron_aot_runtime.contract.errors import LoweringError, RecipeError
from neuron_aot_runtime.contract.manifest import Artifact, Manifest, Program, Serving
from neuron_aot_runtime.weights import read_param
from test_models import reference
from toy import decode_inputs, model_plan, prefill_inputs, program_plan

from neuron_aot.codegen import code_generator
from neuron_aot.execute import ProgramChecker
from neuron_aot.local_ranks import LocalRanks
from neuron_aot.lower import hlo_proto, lower_program
from neuron_aot.lower.preflight import check_hlo
from neuron_aot.lower.replicas import COLLECTIVES, replica_count
from neuron_aot.lower.rules import collectives as rules
from neuron_aot.models import family
from neuron_aot.models.parallel import Ranks
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
    return Program(
        name=plan.name, phase=plan.phase, bucket=plan.bucket, program_key="0" * 64,
        artifact=Artifact(format="xla-cpu", digest="sha256:" + "0" * 64, size=0),
        inputs=lowered.inputs, outputs=lowered.outputs,
    ), artifact  # fmt: skip


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
            {spec.name: torch.from_numpy(read_param(checkpoint, entry, spec, rank)[0]) for entry, spec in entries}
            for rank in world
        ]
    )
    states = [{spec.name: torch.zeros(spec.shape) for spec in manifest.states} for _ in world]
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


@pytest.mark.parametrize(("name", "world_size"), [("9 heads, 3 kv", 4), ("6 heads, 2 kv", 2)])
def test_greedy_tokens_over_the_divided_vocabulary_are_those_of_the_largest_logits(name, world_size, tmp_path):
    steps = generate(name, tmp_path, world_size=world_size, sequence_parallel=True, greedy=True)
    wanted = [int(logits.argmax()) for logits in transformers_logits(name)]
    assert [[int(token) for token in found] for found in steps] == [[token] * world_size for token in wanted]
