"""Code generators, one module each, imported on demand."""

from __future__ import annotations

from neuron_aot_runtime.contract.errors import UsageError

from .base import CodeGenerator

TARGETS = ("cpu",)

__all__ = ["TARGETS", "CodeGenerator", "code_generator"]


def code_generator(target: str) -> CodeGenerator:
    """The code generator for a target. Raises UsageError for an unknown one."""
    if target == "cpu":
        from .xla_cpu import XlaCpuGenerator

        return XlaCpuGenerator()
    raise UsageError(f"no code generator for target {target!r}", wanted=" | ".join(TARGETS), found=target)
