"""Runs programs on seeded inputs and compares them with their PyTorch definition; any target's module, on the cpu, all
ranks in one process.

The definition runs in float32 on the same values, so a bfloat16 program is measured against the truth rather than
against another rounding of it; how far PyTorch's own bfloat16 run is from it tells how far the program may be. Compared
are every output, and every KV state after the step, except the null block 0, where padding writes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from neuron_aot_runtime.contract.manifest import RANK_INPUT, Manifest, Program, TensorSpec
from neuron_aot_runtime.weights import read_param

from .local_ranks import LocalRanks
from .models import family
from .models.collectives import run_ranks
from .program import ModelLayout, ProgramPlan

# Relative error in the Euclidean norm, of the worst tensor. Float32 sums in another order give about 3e-6 over 30
# layers.
FLOAT32_TOLERANCE = 1e-4
# Of PyTorch's own error in a narrower type (about 3e-2 for bfloat16; it grows with random values and context).
NARROW_TOLERANCE = 1.5


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One program's relative error: the largest over its outputs and KV states."""

    program: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # a NaN is not


class ProgramChecker:
    """A checkpoint of seeded weights, divided over all ranks of one bundle, and shared by its programs."""

    def __init__(self, manifest: Manifest, layout: ModelLayout, *, seed: int = 0) -> None:
        self._manifest = manifest
        self._layout = layout
        self._generator = torch.Generator().manual_seed(seed)
        checkpoint = _RandomCheckpoint(layout, self._generator)
        self._weights = [self._read_weights(checkpoint, rank) for rank in range(manifest.world_size)]
        self._ranks = LocalRanks(self._weights)

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The first rank's seeded weights, as a device takes them."""
        return {name: to_numpy(tensor) for name, tensor in self._weights[0].items()}

    def check(self, plan: ProgramPlan, program: Program, artifact: Path) -> Comparison:
        """Run ``program`` (``artifact``: its verified file) and the family's definition on the same random tensors.

        Raises the device's errors.
        """
        states = [
            {spec.name: self._random_state(spec) for spec in self._layout.states}
            for _ in range(self._manifest.world_size)
        ]
        inputs = [
            {name: torch.from_numpy(array) for name, array in step.items()}
            for step in (
                random_inputs(plan, self._layout.spec.vocab_size, rank) for rank in range(self._manifest.world_size)
            )
        ]
        stored = [{name: self._stored(state) for name, state in rank.items()} for rank in states]
        found = self._ranks.run(self._manifest, program, artifact, stored, inputs)

        wanted = self._definition(plan, states, inputs, torch.float32)
        tolerance = FLOAT32_TOLERANCE
        if plan.model.dtype != "float32":
            narrow = self._definition(plan, states, inputs, None)
            errors = (_largest_error(outputs["logits"], written, whole)
                      for (outputs, written), whole in zip(narrow, wanted, strict=True))  # fmt: skip
            tolerance = NARROW_TOLERANCE * max(errors)
        errors = [self._error(tensors, whole) for tensors, whole in zip(found, wanted, strict=True)]
        return Comparison(program=program.name, error=max(errors), tolerance=tolerance)

    def _definition(self, plan: ProgramPlan, states: list, inputs: list, dtype: torch.dtype | None) -> list:
        """(outputs, written states) of each rank by the family's definition, in ``dtype`` (None: the model's own)."""
        logits_plan = replace(plan, model=replace(plan.model, greedy=False))
        definition, *_ = family(plan.model.architecture).program(logits_plan)

        def run(rank: int):
            with torch.no_grad():
                return definition(_cast(self._weights[rank], dtype), _cast(states[rank], dtype), inputs[rank])

        return run_ranks(self._manifest.world_size, run)

    def _error(self, found: dict[str, torch.Tensor], wanted: tuple[dict, dict]) -> float:
        """The largest error of one rank's outputs and states."""
        written = {spec.name: found[spec.name].view(self._kv_dtype) for spec in self._layout.states}
        error = _largest_error(found.get("logits"), written, wanted)
        return max(error, _regret(found["tokens"], wanted[0]["logits"])) if "tokens" in found else error

    def _read_weights(self, checkpoint: _RandomCheckpoint, rank: int) -> dict[str, torch.Tensor]:
        weights = {}
        for spec, entry in zip(self._layout.params, self._layout.weight_map, strict=True):
            array, _ = read_param(checkpoint, entry, spec, rank)
            weights[spec.name] = to_torch(array)
        return weights

    def _random_state(self, spec: TensorSpec) -> torch.Tensor:
        return torch.randn(spec.shape, generator=self._generator).to(self._kv_dtype)

    def _stored(self, state: torch.Tensor) -> torch.Tensor:
        """A state as programs take it, which may be as raw bits."""
        return state.view(getattr(torch, self._layout.states[0].dtype))

    @property
    def _kv_dtype(self) -> torch.dtype:
        return getattr(torch, self._layout.kv_cache.dtype)

    def close(self) -> None:
        self._ranks = None


class _RandomCheckpoint:
    """Small random matrices and ones-like vectors: activations keep their size through any number of layers.

    ``array``, as of ``neuron_aot_runtime.checkpoint.Checkpoint``: each tensor is made once, when it is first read.
    """

    def __init__(self, layout: ModelLayout, generator: torch.Generator) -> None:
        self._shapes = {source.tensor: source.shape for entry in layout.weight_map for source in entry.sources}
        self._dtype = getattr(torch, layout.params[0].dtype)
        self._generator = generator
        self._made: dict[str, np.ndarray] = {}

    def array(self, name: str) -> np.ndarray:
        if name not in self._made:
            shape = self._shapes[name]
            noise = torch.randn(shape, generator=self._generator)
            scaled = noise * shape[-1] ** -0.5 if len(shape) > 1 else 1 + 0.1 * noise
            self._made[name] = to_numpy(scaled.to(self._dtype))
        return self._made[name]


def random_inputs(plan: ProgramPlan, vocab_size: int, rank: int = 0) -> dict[str, np.ndarray]:
    """One step as ``rank`` would get it: distinct blocks, and one padding token or row where there is room."""
    rng = np.random.default_rng((plan.bucket.size, plan.bucket.context))
    size, blocks = plan.bucket.size, -(-plan.bucket.context // plan.model.block_size)
    tokens = rng.integers(0, vocab_size, size, dtype=np.int32)
    pool = rng.permutation(np.arange(1, plan.model.num_blocks, dtype=np.int32))
    own = {RANK_INPUT: np.array([rank], np.int32)} if plan.model.world_size > 1 else {}
    if plan.phase == "prefill":
        valid = max(1, size - 1)
        computed = rng.integers(0, plan.bucket.context - valid + 1, 1, dtype=np.int32)
        return {
            "token_ids": tokens,
            "num_computed_tokens": computed,
            "num_tokens": np.array([valid], np.int32),
            "block_table": np.resize(pool, blocks),
            **own,
        }
    positions = rng.integers(0, plan.bucket.context, size, dtype=np.int32)
    tables = np.resize(pool, (size, blocks))
    if size > 1:
        positions[-1], tables[-1] = 0, 0
    return {"token_ids": tokens, "positions": positions, "block_tables": tables, **own}


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's memory as numpy sees it: bfloat16 as ``ml_dtypes.bfloat16``."""
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)


def to_torch(array: np.ndarray) -> torch.Tensor:
    """The inverse of ``to_numpy``."""
    if array.dtype != ml_dtypes.bfloat16:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)


def _cast(tensors: dict[str, torch.Tensor], dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    return {name: tensor.to(dtype or tensor.dtype) for name, tensor in tensors.items()}


def _largest_error(logits: torch.Tensor | None, states: dict[str, torch.Tensor], wanted: tuple[dict, dict]) -> float:
    outputs, written = wanted
    errors = [_relative_error(states[name][1:], state[1:]) for name, state in written.items()]
    return max(errors + ([] if logits is None else [_relative_error(logits, outputs["logits"])]))


def _relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.float() - wanted).norm() / (wanted.norm() or 1.0))


def _regret(tokens: torch.Tensor, logits: torch.Tensor) -> float:
    """How far below the best logit those of the chosen tokens lie: near-ties may swap."""
    chosen = logits.gather(1, tokens.long()[:, None])
    return float((logits.amax(1, keepdim=True) - chosen).max() / logits.abs().max())
