"""Small plans and states for tests of models and lowering."""

from __future__ import annotations

import numpy as np
import torch
from neuron_aot_runtime.contract.facts import read_facts
from neuron_aot_runtime.contract.manifest import Bucket

from neuron_aot.models import family
from neuron_aot.program import ModelPlan, ProgramPlan

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
}  # fmt: skip


def model_plan(config: dict | None = None, **changes) -> ModelPlan:
    config = config or CONFIG
    fields = {
        "target": "cpu", "architecture": "LlamaForCausalLM", "dtype": "float32", "block_size": 8, "num_blocks": 33,
        "facts": read_facts(family("LlamaForCausalLM").FACTS, config),
    }  # fmt: skip
    fields |= changes
    return ModelPlan(**{"kv_dtype": fields["dtype"]} | fields)


def program_plan(phase: str, size: int, context: int, config: dict | None = None, **changes) -> ProgramPlan:
    return ProgramPlan(model=model_plan(config, **changes), phase=phase, bucket=Bucket(size=size, context=context))


def empty_states(plan: ModelPlan) -> dict[str, torch.Tensor]:
    layout = family(plan.architecture).layout(plan)
    return {spec.name: torch.zeros(spec.shape, dtype=getattr(torch, plan.kv_dtype)) for spec in layout.states}


def prefill_inputs(
    tokens: list[int], *, computed: int, size: int, context: int, blocks: list[int], block_size: int = 8
):
    table = np.zeros(context // block_size, np.int32)
    table[: len(blocks)] = blocks
    return {
        "token_ids": np.pad(np.array(tokens, np.int32), (0, size - len(tokens))),
        "num_computed_tokens": np.array([computed], np.int32),
        "num_tokens": np.array([len(tokens)], np.int32),
        "block_table": table,
    }


def decode_inputs(rows: list[tuple[int, int, list[int]]], *, size: int, context: int, block_size: int = 8):
    """``rows``: (token, position, blocks) of each sequence."""
    tables = np.zeros((size, context // block_size), np.int32)
    tokens, positions = np.zeros(size, np.int32), np.zeros(size, np.int32)
    for row, (token, position, blocks) in enumerate(rows):
        tokens[row], positions[row] = token, position
        tables[row, : len(blocks)] = blocks
    return {"token_ids": tokens, "positions": positions, "block_tables": tables}


def tensors(inputs: dict) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in inputs.items()}
