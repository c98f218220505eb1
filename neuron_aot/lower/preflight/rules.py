"""The documented rules of the compiler's verifier: data, and one small check each.

A check takes (context, instruction) and returns what is wrong with it, or None. Source of all: the error code reference
of the Neuron compiler. Rules that only a compile can decide (too many instructions, device memory) are not here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..hlo_proto import BITS, element_type, leaf_shapes
from .operators import BLOCK_SCALED_DOT, CUSTOM_CALLS, NATIVE_KERNEL, OPCODES, QUANTIZE_MX

MX_BLOCK = 32
_FLOATS = ("f16", "bf16", "f32", "f64")
_FNUZ = ("f8e4m3fnuz", "f8e4m3b11fnuz", "f8e5m2fnuz")
_ELEMENTWISE = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "and",
    "power",
    "atan2",
    "shift-right-logical",
    "shift-right-arithmetic",
    "compare",
]


@dataclass(frozen=True)
class Rule:
    """``codes``: the compiler's; ``opcodes``: what it is about, empty for every instruction; ``fix``: what to change."""

    codes: tuple[str, ...]
    says: str
    check: Callable
    fix: str
    opcodes: tuple[str, ...] = ()


def _is_float(kind: str) -> bool:
    return kind in _FLOATS or kind.startswith("f8")


def _type_rule(codes: tuple[str, ...], says: str, wrong: Callable, fix: str) -> Rule:
    """A rule about element types: ``wrong(context, type)``."""

    def check(context, instruction):
        kinds = [kind for kind in context.types(instruction) if wrong(context, kind)]
        return f"has the type {kinds[0]}" if kinds else None

    return Rule(codes, says, check, fix)


def _dynamic(context, instruction):
    for shape in leaf_shapes(instruction.shape):
        if any(shape.is_dynamic_dimension) or any(size < 0 for size in shape.dimensions):
            return f"has a dynamic dimension in {list(shape.dimensions)}"
    return None


def _operator(context, instruction):
    if instruction.opcode not in OPCODES:
        return "it is not in the documented list"
    return "it is not in the installed compiler's own list" if instruction.opcode in context.unlisted else None


def _wide_constant(context, instruction):
    if element_type(instruction.shape) != "u64":
        return None
    wide = [value for value in instruction.literal.u64s if value >> 32]
    return f"holds {wide[0]}" if wide else None


def _random(context, instruction):
    return f"uses algorithm {instruction.rng_algorithm}" if instruction.rng_algorithm else None


def _convolution(context, instruction):
    for window in instruction.window.dimensions:
        if window.base_dilation > 1 and (window.window_dilation > 1 or window.stride > 1):
            return (
                f"has input dilation {window.base_dilation} with kernel dilation {window.window_dilation} "
                f"and stride {window.stride}"
            )
    return None


def _integers(instruction_types: list[str]) -> str | None:
    wrong = [kind for kind in instruction_types if not _is_float(kind)]
    return f"works on {wrong[0]}" if wrong else None


def _topk(context, instruction):
    if instruction.opcode == "custom-call" and not instruction.custom_call_target.endswith("TopK"):
        return None
    return _integers(context.types(context.operands(instruction)[0]))


def _scatter(context, instruction):
    (reducer,) = instruction.called_computation_ids
    if context.root(reducer).opcode == "parameter":
        return None  # a plain overwrite
    return _integers(context.types(instruction))


def _reduce_window(context, instruction):
    if len(instruction.operand_ids) != 2:
        return f"has {len(instruction.operand_ids) // 2} operands"
    for window in instruction.window.dimensions:
        if window.base_dilation > 1 or window.window_dilation > 1:
            return f"has base dilation {window.base_dilation} and window dilation {window.window_dilation}"
    return None


def _shift(context, instruction):
    (kind,) = context.types(context.operands(instruction)[0])
    return None if BITS.get(kind) == 32 else f"shifts {kind}"


def _long_iota(context, instruction):
    operand, indices = context.operands(instruction)[:2]
    source = context.source(indices)
    if source.opcode != "iota":
        return None
    length = source.shape.dimensions[source.dimensions[0] if source.dimensions else 0]
    numbers = instruction.gather_dimension_numbers.start_index_map if instruction.opcode == "gather" else (
        instruction.scatter_dimension_numbers.scatter_dims_to_operand_dims
    )  # fmt: skip
    short = [operand.shape.dimensions[axis] for axis in numbers if operand.shape.dimensions[axis] < length]
    return f"an iota of {length} indexes a dimension of {short[0]}" if short else None


def _dot(context, instruction):
    return _integers([kind for operand in context.operands(instruction) for kind in context.types(operand)])


def _collective(context, instruction):
    return _integers(context.types(instruction))


def _power(context, instruction):
    kinds = [kind for operand in context.operands(instruction) for kind in context.types(operand)]
    return "has an s64 operand" if "s64" in kinds else None


def _custom_call(context, instruction):
    target = instruction.custom_call_target
    return None if target in CUSTOM_CALLS else f"calls {target!r}"


def _mx(context, instruction):
    operands = context.operands(instruction)
    if instruction.custom_call_target == BLOCK_SCALED_DOT:
        if len(operands) != 4:
            return f"has {len(operands)} operands, not data and scales of both sides"
        wrong = [kind for operand in operands[:2] for kind in context.types(operand) if kind != "u32"]
        return f"takes {wrong[0]} data, not packed u32" if wrong else None
    if instruction.custom_call_target == QUANTIZE_MX:
        (kind,) = context.types(operands[0])
        size = operands[0].shape.dimensions[-1] if operands[0].shape.dimensions else 0
        if kind not in ("bf16", "f16"):
            return f"quantizes {kind}, not bf16 or f16"
        if size % MX_BLOCK:
            return f"quantizes rows of {size}, not a multiple of {MX_BLOCK}"
    return None


def _kernel(context, instruction):
    if instruction.custom_call_target != NATIVE_KERNEL:
        return None
    config = instruction.backend_config.decode("utf-8", "replace")
    if not config:
        return "its backend_config names no kernel"
    missing = [path for path in re.findall(r"/[^\s\"',:;]+", config) if not Path(path).exists()]
    return f"its kernel file {missing[0]} does not exist" if missing else None


def _shapes(context, instruction):
    dims = list(instruction.shape.dimensions)
    operands = context.operands(instruction)
    if instruction.opcode == "reshape":
        before = math.prod(operands[0].shape.dimensions)
        return None if before == math.prod(dims) else f"makes {math.prod(dims)} elements of {before}"
    wrong = [operand for operand in operands if list(operand.shape.dimensions) != dims]
    return f"combines {list(wrong[0].shape.dimensions)} into {dims}" if wrong else None


_FLOAT32 = "convert to float32 first"
_DOCUMENTED = "write it with documented operators"

RULES: tuple[Rule, ...] = (
    Rule(("NCC_EMOD025",), "every dimension must be static", _dynamic, "give the dimension a size"),
    Rule(("NCC_EVRF001", "NCC_EUOC002"), "the operator must be one that neuronx-cc lists", _operator, _DOCUMENTED),
    _type_rule(("NCC_EVRF004",), "no complex numbers", lambda _, kind: kind in ("c64", "c128"),
               "compute with real and imaginary parts"),
    _type_rule(("NCC_ESPP004", "NCC_ESPP047"), "no float4", lambda _, kind: kind == "f4e2m1fn",
               "pack MXFP4 as u32 and use the MX custom calls"),
    _type_rule(("NCC_EVRF005",), "no FNUZ float8", lambda _, kind: kind in _FNUZ, "use float8_e4m3 or bfloat16"),
    _type_rule(("NCC_EVRF051",), "float8_e4m3fn only on trn3 and later",
               lambda context, kind: kind == "f8e4m3fn" and kind not in context.target.float8,
               "use float8_e4m3 (largest value 240) on this target"),
    _type_rule(("NCC_EVRF052",), "no float8_e4m3 on hardware newer than trn3",
               lambda context, kind: kind == "f8e4m3" and kind not in context.target.float8, "use float8_e4m3fn"),
    Rule(("NCC_ESFH002",), "unsigned 64-bit constants must fit 32 bits", _wide_constant, "use 32-bit constants",
         ("constant",)),
    Rule(("NCC_EVRF006",), "RngBitGenerator only with the default algorithm", _random, "leave the algorithm out",
         ("rng-bit-generator",)),
    Rule(("NCC_EVRF010", "NCC_EVRF011"), "input dilation neither with kernel dilation nor with stride", _convolution,
         "split the convolution", ("convolution",)),
    Rule(("NCC_EVRF013",), "TopK on floats only", _topk, _FLOAT32, ("topk", "custom-call")),
    Rule(("NCC_EVRF016", "NCC_EVRF060"), "a scatter that reduces works on floats only", _scatter, _FLOAT32, ("scatter",)),
    Rule(("NCC_EVRF017", "NCC_EVRF018", "NCC_EVRF019"), "reduce-window has one operand and no dilation",
         _reduce_window, "split it, and dilate by slicing", ("reduce-window",)),
    Rule(("NCC_EVRF022",), "arithmetic shift right of 32-bit values only", _shift, "convert to int32 first",
         ("shift-right-arithmetic",)),
    Rule(("NCC_EVRF031", "NCC_EVRF056"), "an iota index no longer than the dimension it indexes", _long_iota,
         "shorten the iota", ("gather", "scatter")),
    Rule(("NCC_EVRF035",), "no dot of integers", _dot, "convert the operands to bfloat16 or float32", ("dot",)),
    Rule(("NCC_EVRF061", "NCC_EVRF063"), "reducing collectives on floats only", _collective, _FLOAT32,
         ("all-reduce", "reduce-scatter")),
    Rule(("NCC_EVRF062",), "no power of int64", _power, "use int32", ("power",)),
    Rule(("NCC_EHCA005", "NCC_EVRF015"), "custom calls only of the documented targets", _custom_call, _DOCUMENTED,
         ("custom-call",)),
    Rule(("NCC_EVRF036", "NCC_EVRF058"), "MX: bf16 or f16 in, blocks of 32, packed u32 data, four operands", _mx,
         "follow the MX custom calls' signature", ("custom-call",)),
    Rule(("NCC_EVRF059", "NCC_EVRF065"), "an NKI kernel call must find its kernel file", _kernel, "trace the kernel again",
         ("custom-call",)),
    Rule(("NCC_EVRF064",), "XLA's shape rules", _shapes, "report it: the lowering made a malformed module",
         ("reshape", *_ELEMENTWISE)),
)  # fmt: skip
