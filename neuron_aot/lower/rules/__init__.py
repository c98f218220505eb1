"""Lowering rules: one small function an ATen operator, in jax.numpy / lax; a few differ by target.

A rule takes the operator's arguments, tensors as JAX arrays, and returns what the operator returns. The interpreter
checks every result's shape and dtype against what PyTorch says, so a rule cannot be quietly off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...targets import CPU, neuron_target

Rule = Callable
Rules = Mapping[str, Rule]


def rules_for(target: str) -> Rules:
    """Every rule of a target, by operator name (``aten.mul.Tensor``). Raises UsageError."""
    from . import aten, collectives

    shared = aten.RULES | collectives.RULES
    if target == CPU:
        from . import cpu

        return shared | cpu.RULES
    neuron_target(target)
    from . import neuron

    return shared | neuron.RULES
