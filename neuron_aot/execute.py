"""Runs programs on seeded inputs and compares them with their PyTorch definition; any target's module, on the cpu.

The definition runs in float32 on the same values, so a bfloat16 program is measured against the truth rather than
against another rounding of it; how far PyTorch's own bfloat16 run is from it tells how far the program may be. Compared
are every output, and every KV state after the step, except the null block 0, where padding writes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from neuron_aot_runtime.contract.manifest import Manifest, Program, TensorSpec
from neuron_aot_runtime.device.cpu import CpuDevice

from .models import family
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
    """Seeded weights on a cpu device, shared by the programs of one bundle."""

    def __init__(self, manifest: Manifest, layout: ModelLayout, *, seed: int = 0) -> None:
        self._manifest = manifest
        self._layout = layout
        self._generator = torch.Generator().manual_seed(seed)
        self._weights = {spec.name: self._random_param(spec) for spec in layout.params}
        self._device = CpuDevice()
        for spec in layout.params:
            self._device.put_param(spec, self.params[spec.name])

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The seeded weights, as a device takes them."""
        return {name: to_numpy(tensor) for name, tensor in self._weights.items()}

    def check(self, plan: ProgramPlan, program: Program, artifact: Path) -> Comparison:
        """Run ``program`` (``artifact``: its verified file) and the family's definition on the same random tensors.

        Raises the device's errors.
        """
        self._device.load(self._manifest, program, artifact)
        states = {spec.name: self._random_state(spec) for spec in self._layout.states}
        for spec in self._layout.states:
            self._device.put_state(spec, to_numpy(states[spec.name], bits=spec.dtype == "uint16").copy())
        inputs = random_inputs(plan, self._layout.spec.vocab_size)
        found = self._device.execute(program.name, inputs)

        logits_plan = replace(plan, model=replace(plan.model, greedy=False))
        definition, *_ = family(plan.model.architecture).program(logits_plan)
        steps = {name: torch.from_numpy(array) for name, array in inputs.items()}
        with torch.no_grad():
            wanted = definition(_float32(self._weights), _float32(states), steps)
            tolerance = FLOAT32_TOLERANCE
            if plan.model.dtype != "float32":
                outputs, written = definition(self._weights, states, steps)
                tolerance = NARROW_TOLERANCE * _largest_error(outputs["logits"], written, wanted)
        written = {spec.name: self._read_state(spec) for spec in self._layout.states}
        if "logits" in found:
            error = _largest_error(torch.tensor(found["logits"]), written, wanted)
        else:
            error = _largest_error(None, written, wanted)
            error = max(error, _regret(torch.tensor(found["tokens"]), wanted[0]["logits"]))
        return Comparison(program=program.name, error=error, tolerance=tolerance)

    def close(self) -> None:
        self._device.close()

    def _read_state(self, spec: TensorSpec) -> torch.Tensor:
        state = self._device.read_state(spec.name)
        bits = state.view(np.uint16) if state.dtype.itemsize == 2 else state
        return torch.from_numpy(bits).view(self._kv_dtype)

    def _random_param(self, spec: TensorSpec) -> torch.Tensor:
        """Small random matrices and ones-like vectors: activations keep their size through any number of layers."""
        noise = torch.randn(spec.shape, generator=self._generator)
        scaled = noise * spec.shape[-1] ** -0.5 if len(spec.shape) > 1 else 1 + 0.1 * noise
        return scaled.to(getattr(torch, spec.dtype))

    def _random_state(self, spec: TensorSpec) -> torch.Tensor:
        return torch.randn(spec.shape, generator=self._generator).to(self._kv_dtype)

    @property
    def _kv_dtype(self) -> torch.dtype:
        return getattr(torch, self._layout.kv_cache.dtype)


def random_inputs(plan: ProgramPlan, vocab_size: int) -> dict[str, np.ndarray]:
    """One step as the runner would make it: distinct blocks, and one padding token or row where there is room."""
    rng = np.random.default_rng((plan.bucket.size, plan.bucket.context))
    size, blocks = plan.bucket.size, -(-plan.bucket.context // plan.model.block_size)
    tokens = rng.integers(0, vocab_size, size, dtype=np.int32)
    pool = rng.permutation(np.arange(1, plan.model.num_blocks, dtype=np.int32))
    if plan.phase == "prefill":
        valid = max(1, size - 1)
        computed = rng.integers(0, plan.bucket.context - valid + 1, 1, dtype=np.int32)
        return {
            "token_ids": tokens,
            "num_computed_tokens": computed,
            "num_tokens": np.array([valid], np.int32),
            "block_table": np.resize(pool, blocks),
        }
    positions = rng.integers(0, plan.bucket.context, size, dtype=np.int32)
    tables = np.resize(pool, (size, blocks))
    if size > 1:
        positions[-1], tables[-1] = 0, 0
    return {"token_ids": tokens, "positions": positions, "block_tables": tables}


def to_numpy(tensor: torch.Tensor, *, bits: bool = False) -> np.ndarray:
    """A tensor's memory as numpy sees it: bfloat16 as ``ml_dtypes.bfloat16``, or as uint16 with ``bits``."""
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    import ml_dtypes

    raw = tensor.view(torch.uint16).numpy()
    return raw if bits else raw.view(ml_dtypes.bfloat16)


def _float32(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.float() for name, tensor in tensors.items()}


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
