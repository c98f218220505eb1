"""The operators that neuronx-cc documents for XLA, as HLO opcodes, and the custom calls it knows.

Sources: the supported-operators table of the Neuron documentation (``neuronx-cc list-operators --framework XLA`` prints
the installed compiler's own) and, for those that only the error reference mentions, the rules about them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_EVERY_MODULE = _words("parameter constant tuple get-tuple-element copy")
_TABLE = _words(
    """
    abs add all-gather all-reduce atan2 batch-norm-training batch-norm-grad batch-norm-inference bitcast-convert
    broadcast ceil clamp compare concatenate convert cosine custom-call divide dot dynamic-update-slice exponential
    floor gather iota log and not maximum minimum multiply negate pad power reduce reshape reverse rng-bit-generator
    rng rsqrt scatter select select-and-scatter shift-right-logical sign sine slice sqrt subtract tanh transpose
    """
)
_BY_THEIR_RULES = _words("convolution reduce-window reduce-scatter shift-right-arithmetic topk")
OPCODES = _EVERY_MODULE | _TABLE | _BY_THEIR_RULES

#: Where XlaBuilder, whose names the compiler's own list has, calls an operator otherwise than HLO does.
_BUILDER_NAMES = {
    "and": "logicaland", "batch-norm-training": "batchnorm", "bitcast-convert": "bitcastconverttype",
    "broadcast": "broadcastindim", "compare": "eq", "convert": "convertelementtype", "cosine": "cos", "divide": "div",
    "dot": "dotgeneral", "exponential": "exp", "maximum": "max", "minimum": "min", "multiply": "mul", "negate": "neg",
    "not": "logicalnot", "power": "pow", "reverse": "rev", "rng": "rnguniform", "sine": "sin", "subtract": "sub",
}  # fmt: skip


def unlisted(listed: Iterable[str]) -> frozenset[str]:
    """The opcodes of the documented table that a compiler's own list of operators lacks, however it spells them.

    What only the error reference mentions is in no such table, so that it is missing from a list says nothing.
    """
    plain = {re.sub("[^a-z0-9]", "", name.lower()) for name in listed}
    return frozenset(
        opcode for opcode in _TABLE if plain.isdisjoint((opcode.replace("-", ""), _BUILDER_NAMES.get(opcode)))
    )


_NEURON_CALLS = [
    "Erf",
    "Gelu",
    "GeluApprxTanh",
    "Silu",
    "RmsNorm",
    "Softmax",
    "CollectiveMatmul",
    "IntMatmult",
    "ArgMax",
    "ArgMin",
    "TopK",
    "DropoutMaskV1",
    "CustomNativeKernel",
    "CustomOp",
    "DevicePrint",
    "QuantizeMX",
]
QUANTIZE_MX = "AwsNeuronQuantizeMX"
BLOCK_SCALED_DOT = "__op$block_scaled_dot"
NATIVE_KERNEL = "AwsNeuronCustomNativeKernel"
CUSTOM_CALLS = frozenset({*(f"AwsNeuron{name}" for name in _NEURON_CALLS), BLOCK_SCALED_DOT})
