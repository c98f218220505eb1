"""Runs programs on seeded inputs and compares them with their PyTorch definition; any target's module, on the cpu.

What is compared: every output, and every KV state after the step, except the null block 0, where padding writes.
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

# Largest error, relative to the definition's largest value. Float32 sums in another order differ by about 3e-6 over
# 30 layers; bfloat16 rounds each layer's result differently (3e-2 for PyTorch and XLA alike, against float32).
TOLERANCE = {"float32": 1e-4, "bfloat16": 6e-2}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One program's largest relative error over its outputs and KV states."""

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
        with torch.no_grad():
            outputs, written = definition(
                self._weights, states, {name: torch.from_numpy(array) for name, array in inputs.items()}
            )
        errors = [self._output_error(found, outputs["logits"].numpy())]
        errors += [_relative_error(self._read_state(spec), written[spec.name]) for spec in self._layout.states]
        return Comparison(program=program.name, error=max(errors), tolerance=TOLERANCE[plan.model.dtype])

    def close(self) -> None:
        self._device.close()

    def _output_error(self, found: dict[str, np.ndarray], logits: np.ndarray) -> float:
        """Of the logits; of greedy tokens, how far below the best logit theirs lies (near-ties may swap)."""
        scale = float(np.abs(logits).max()) or 1.0
        if "tokens" in found:
            chosen = np.take_along_axis(logits, found["tokens"][:, None], 1)
            return float((logits.max(1, keepdims=True) - chosen).max()) / scale
        return float(np.abs(found["logits"] - logits).max()) / scale

    def _read_state(self, spec: TensorSpec) -> torch.Tensor:
        state = torch.from_numpy(self._device.read_state(spec.name))
        return state.view(self._kv_dtype) if spec.dtype == "uint16" else state

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


def _relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    wanted = wanted[1:].float()
    return float((found[1:].float() - wanted).abs().max() / (wanted.abs().max() or 1.0))
