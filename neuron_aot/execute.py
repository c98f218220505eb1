"""Runs programs on seeded inputs and compares them with their PyTorch definition; any target's module, on the cpu.

What is compared: every output, and every KV state after the step, except the null block 0, where padding writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from neuron_aot_runtime.contract.manifest import Manifest, Program, TensorSpec
from neuron_aot_runtime.device.cpu import CpuDevice

from .program import ModelLayout, ProgramPlan

# Largest error of an output, relative to the largest value of the definition's output. Float32 sums in another
# order differ by about 3e-6 over 30 layers; bfloat16 rounds every layer's result differently (3e-2 was measured
# for both PyTorch and XLA against float32).
TOLERANCE = {"float32": 1e-4, "bfloat16": 6e-2}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One program's result: the largest relative error over its outputs and states, and whether it is within."""

    program: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # a NaN is not


class ProgramChecker:
    """Seeded weights and cache on a cpu device, shared by the programs of one bundle."""

    def __init__(self, manifest: Manifest, layout: ModelLayout, *, seed: int = 0) -> None:
        self._manifest = manifest
        self._layout = layout
        self._generator = torch.Generator().manual_seed(seed)
        self._device = CpuDevice()
        self._params = {spec.name: self._random_param(spec) for spec in layout.params}
        for spec in layout.params:
            self._device.put_param(spec, to_numpy(self._params[spec.name]))

    def check(self, plan: ProgramPlan, program: Program, artifact, definition) -> Comparison:
        """Run ``program`` (its verified artifact file) and ``definition`` on the same random tensors.

        ``definition`` is the function of ``Family.program(plan)``. Raises the device's errors.
        """
        self._device.load(self._manifest, program, artifact)
        dtype = getattr(torch, self._layout.kv_cache.dtype)
        states = {
            spec.name: torch.randn(spec.shape, generator=self._generator).to(dtype) for spec in self._layout.states
        }
        inputs = self._random_inputs(plan)
        self._device.set_states(
            {spec: to_numpy(states[spec.name], bits=spec.dtype != str(dtype)[6:]) for spec in self._layout.states}
        )
        found = self._device.execute(program.name, inputs)
        with torch.no_grad():
            wanted, written = definition(
                self._params, states, {name: torch.from_numpy(array) for name, array in inputs.items()}
            )
        errors = [_relative_error(found[name], to_numpy(value.float())) for name, value in wanted.items()]
        for spec in self._layout.states:
            state = torch.from_numpy(self._device.read_state(spec.name).copy())
            state = state.view(dtype) if state.dtype != dtype else state
            errors.append(_relative_error(state.float().numpy()[1:], written[spec.name].float().numpy()[1:]))
        return Comparison(program=program.name, error=max(errors), tolerance=TOLERANCE[plan.model.dtype])

    def close(self) -> None:
        self._device.close()

    def _random_param(self, spec: TensorSpec) -> torch.Tensor:
        """Small random matrices and ones-like vectors: activations keep their size through any number of layers."""
        noise = torch.randn(spec.shape, generator=self._generator)
        scaled = noise * spec.shape[-1] ** -0.5 if len(spec.shape) > 1 else 1 + 0.1 * noise
        return scaled.to(getattr(torch, spec.dtype))

    def _random_inputs(self, plan: ProgramPlan) -> dict[str, np.ndarray]:
        """A step as the runner would make it: distinct blocks, one padding row or token where there is room."""
        rng = np.random.default_rng(plan.bucket.size * 1_000_003 + plan.bucket.context)
        size, blocks = plan.bucket.size, -(-plan.bucket.context // plan.model.block_size)
        tokens = rng.integers(0, self._layout.spec.vocab_size, size, dtype=np.int32)
        if plan.phase == "prefill":
            valid = max(1, size - 1)
            computed = int(rng.integers(0, plan.bucket.context - valid + 1))
            table = rng.permutation(np.arange(1, plan.model.num_blocks, dtype=np.int32))[:blocks]
            return {
                "token_ids": tokens,
                "num_computed_tokens": np.array([computed], np.int32),
                "num_tokens": np.array([valid], np.int32),
                "block_table": np.resize(table, blocks),
            }
        positions = rng.integers(0, plan.bucket.context, size, dtype=np.int32)
        order = rng.permutation(np.arange(1, plan.model.num_blocks, dtype=np.int32))
        tables = np.resize(order, (size, blocks))
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


def _relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    scale = float(np.abs(wanted).max()) or 1.0
    return float(np.abs(found.astype(np.float32) - wanted).max()) / scale


def compare_programs(
    checker: ProgramChecker, programs: Sequence[tuple[ProgramPlan, Program, object, object]]
) -> Iterator[Comparison]:
    """Check one program after the other."""
    for plan, program, artifact, definition in programs:
        yield checker.check(plan, program, artifact, definition)
