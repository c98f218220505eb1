"""The operators that neuronx-cc documents for XLA, as HLO opcodes, and the custom calls it knows. Data only.

Sources: the supported-operators table of the Neuron documentation (``neuronx-cc list-operators --framework XLA`` prints
the installed compiler's own) and, for those that only the error reference mentions, the rules about them.
"""

OPCODES = frozenset(
    # parts of every module
    [
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "copy",
        "abs",
        "add",
        "all-gather",
        "all-reduce",
        "atan2",
        "batch-norm-training",
        "batch-norm-grad",
        "batch-norm-inference",
        "bitcast-convert",
        "broadcast",
        "ceil",
        "clamp",
        "compare",
        "concatenate",
        "convert",
        "cosine",
        "custom-call",
        "divide",
        "dot",
        "dynamic-update-slice",
        "exponential",
        "floor",
        "gather",
        "iota",
        "log",
        "and",
        "not",
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "pad",
        "power",
        "reduce",
        "reshape",
        "reverse",
        "rng-bit-generator",
        "rng",
        "rsqrt",
        "scatter",
        "select",
        "select-and-scatter",
        "shift-right-logical",
        "sign",
        "sine",
        "slice",
        "sqrt",
        "subtract",
        "tanh",
        "transpose",
        "convolution",
        "reduce-window",
        "reduce-scatter",
        "shift-right-arithmetic",
        "topk",
    ]
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
