"""Device memory of one rank: what the KV cache may take. The rule of the vLLM Neuron features guide, at compile time.

    total_budget    = device memory * gpu_memory_utilization
    kv_cache_budget = max(total_budget - weights, 0)
    available       = min(kv_cache_budget, total_budget * VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION)

``num_gpu_blocks_override`` replaces the rule. The result is part of the programs' shapes and of the manifest, so the
serving side never computes it again. All arithmetic is exact: the same recipe gives the same number of blocks anywhere.
"""

from __future__ import annotations

from fractions import Fraction

from neuron_aot_runtime.contract.buckets import round_up
from neuron_aot_runtime.contract.errors import RecipeError
from neuron_aot_runtime.contract.manifest import MemoryBudget
from neuron_aot_runtime.contract.serving import ServingConfig

from ..program import ModelLayout

DEFAULT_UTILIZATION = "0.9"  # vLLM's
GIB = 1 << 30
_MOST_SLOTS = 1 << 30  # slots are int32


def memory_budget(
    serving: ServingConfig, layout: ModelLayout, *, device_bytes: int, blocks_given: bool, kv_cap: Fraction
) -> MemoryBudget:
    """The budget of one rank on a logical core with ``device_bytes``; decides the number of blocks unless given.

    ``layout`` may have been made for any number of blocks. Checks nothing; see :func:`check_budget`.
    """
    weights = sum(spec.nbytes for spec in layout.params)
    block = sum(spec.nbytes for spec in layout.states) // layout.kv_cache.num_blocks
    total = int(device_bytes * Fraction(str(serving.engine_extras.get("gpu_memory_utilization", DEFAULT_UTILIZATION))))
    available = min(max(total - weights, 0), int(total * kv_cap))
    blocks = serving.num_blocks if blocks_given else min(available // block, _MOST_SLOTS // serving.block_size)
    return MemoryBudget(
        device_bytes=device_bytes,
        budget_bytes=total,
        weights_bytes=weights,
        kv_available_bytes=available,
        kv_bytes=blocks * block,
        block_bytes=block,
        num_blocks=blocks,
        sized_by="num_gpu_blocks_override" if blocks_given else "memory",
    )


def check_budget(budget: MemoryBudget, serving: ServingConfig, *, min_kv_gib: Fraction) -> None:
    """Raises RecipeError, with the whole budget, when the model or its KV cache does not fit one logical core."""
    one_sequence = round_up(serving.max_model_len, serving.block_size) // serving.block_size + 1
    problem = advice = None
    if budget.weights_bytes > budget.budget_bytes:
        problem = "the weights alone do not fit the memory of one logical core"
        advice = "raise tensor_parallel_size, or compile for a target with more memory"
    elif budget.sized_by != "memory" and budget.left_bytes < 0:
        problem = "weights and KV cache do not fit the memory of one logical core"
        advice = "lower num_gpu_blocks_override, or leave it out; or raise tensor_parallel_size"
    elif budget.sized_by == "memory" and budget.kv_available_bytes < min_kv_gib * GIB:
        problem = f"KV cache budget below minimum threshold ({float(min_kv_gib):g} GiB)"
        advice = (
            "raise gpu_memory_utilization, VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION or tensor_parallel_size, lower "
            "VLLM_NEURON_MIN_KV_BUDGET_GIB, or set num_gpu_blocks_override"
        )
    elif budget.num_blocks < one_sequence:
        problem = f"the KV cache budget holds {budget.num_blocks} blocks, one sequence needs {one_sequence}"
        advice = "lower max_model_len, or raise gpu_memory_utilization or tensor_parallel_size"
    if problem is not None:
        raise RecipeError(problem, details=budget_lines(budget), next_command=advice)


def budget_lines(budget: MemoryBudget) -> list[str]:
    """The budget in words, a line each."""
    blocks = f"{budget.num_blocks} blocks of {budget.block_bytes} bytes"
    return [
        f"device memory      {_gb(budget.device_bytes)} per logical core, budget {_gb(budget.budget_bytes)}",
        f"weights            {_gb(budget.weights_bytes)} per rank",
        f"KV cache           {_gb(budget.kv_bytes)} per rank: {blocks}, by {budget.sized_by}",
        f"left for programs  {_gb(budget.left_bytes)}",
    ]


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB"
