"""Code generators, one module each, imported on demand."""

from __future__ import annotations

from ..targets import CPU, TARGETS, CompileOptions
from .base import CodeGenerator, CompilerError

__all__ = ["TARGETS", "CodeGenerator", "CompilerError", "code_generator"]


def code_generator(target: str, options: CompileOptions | None = None) -> CodeGenerator:
    """The code generator for a target. Raises UsageError for an unknown target and for options it cannot have."""
    options = options or CompileOptions()
    if target == CPU:
        from .xla_cpu import XlaCpuGenerator

        if options.flags or options.lnc:
            from neuron_aot_runtime.contract.errors import UsageError

            raise UsageError(
                "the cpu target takes neither compiler flags nor a logical core size",
                found=" ".join([*options.flags, *([f"--lnc {options.lnc}"] if options.lnc else [])]),
                next_command="leave them out, or compile for a Neuron target",
            )
        return XlaCpuGenerator()
    from .neuronx_cc import NeuronxCcGenerator

    return NeuronxCcGenerator(target, options)
