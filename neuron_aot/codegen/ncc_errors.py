"""Error codes of neuronx-cc: what they mean, and what to change. From the compiler's error code reference."""

from __future__ import annotations

import re

CODE = re.compile(r"\bNCC_[A-Z]{2,6}[0-9]{3}\b")

_SMALLER = "take a smaller bucket (max_num_batched_tokens, max_num_seqs, contexts), or more tensor parallelism"
_MEMORY = (
    "lower num_gpu_blocks_override, gpu_memory_utilization or VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION, take a smaller "
    "bucket, or more tensor parallelism"
)
_OPERATOR = "`neuron-aot preflight` names the model line; write it with documented operators"
_TYPE = "change the dtype; `neuron-aot preflight` names the tensor and its model line"

#: code -> (meaning, what to change)
CODES = {
    "NCC_EARG001": ("an option does not suit the target", "leave --lnc out on trn1 and inf2, or compile for trn2"),
    "NCC_EMOD025": ("a dimension is not static", "give every dimension a size"),
    **dict.fromkeys(("NCC_EVRF001", "NCC_EUOC002"), ("an operator is not supported", _OPERATOR)),
    "NCC_EVRF004": ("complex numbers are not supported", _TYPE),
    **dict.fromkeys(("NCC_ESPP004", "NCC_ESPP047", "NCC_EVRF005"), ("a float type is not supported", _TYPE)),
    "NCC_EVRF051": ("float8_e4m3fn needs trn3 or later", "use float8_e4m3 on trn1 and trn2"),
    "NCC_EVRF052": ("float8_e4m3 is not supported on hardware newer than trn3", "use float8_e4m3fn"),
    "NCC_EVRF013": ("TopK takes floats only", "convert its operand to float32"),
    **dict.fromkeys(("NCC_EVRF016", "NCC_EVRF060"), ("a reducing scatter takes floats only", _TYPE)),
    "NCC_EVRF035": ("a dot product has integer operands", _TYPE),
    **dict.fromkeys(("NCC_EVRF061", "NCC_EVRF063"), ("a reducing collective takes floats only", _TYPE)),
    **dict.fromkeys(("NCC_EHCA005", "NCC_EVRF015"), ("a custom call is not known", _OPERATOR)),
    **dict.fromkeys(("NCC_EVRF059", "NCC_EVRF065"), ("an NKI kernel is missing or of another NKI", "trace it again")),
    **dict.fromkeys(
        ("NCC_EVRF007", "NCC_EBVF030", "NCC_EXTP004"), ("the program has too many instructions (about 5 million)", _SMALLER)
    ),
    **dict.fromkeys(
        ("NCC_EOOM001", "NCC_EOOM002", "NCC_EVRF009", "NCC_EXSP001"), ("the tensors do not fit device memory", _MEMORY)
    ),
    "NCC_EBIR023": ("the back end refused the program", f"{_SMALLER}; or try --optlevel 1"),
}  # fmt: skip
_INTERNAL = ("an internal error of the compiler", "try another --optlevel or compiler version, and report it with")

#: What a compiler, or the system under it, says when the host's memory ran out in one of its own processes.
_OUT_OF_MEMORY = re.compile(
    r"std::bad_alloc|Cannot allocate memory|MemoryError|out of memory|oom-kill|"
    r"(killed|terminated|exited|died|returned|failed)\b[^\n]{0,40}(signal 9|SIGKILL|-9|137)",
    re.IGNORECASE,
)


def find_code(output: str) -> str | None:
    """The first error code in what the compiler said; an internal one (NCC_I…) when there is no other."""
    codes = [code for code in CODE.findall(output) if code[4] in "EI"]
    return next((code for code in codes if code[4] == "E"), codes[0] if codes else None)


def explain(code: str) -> tuple[str, str]:
    """(meaning, what to change) of a code, whether or not it is in the table."""
    if code in CODES:
        return CODES[code]
    if code[4] == "I":
        return _INTERNAL[0], f"{_INTERNAL[1]} `neuron-aot preflight`'s report"
    return "the compiler refuses the program", "look the code up in the Neuron compiler's error code reference"


def says_out_of_memory(output: str) -> bool:
    """Whether the compiler said that the host's memory ran out. A device's memory (NCC_EOOM…) is another matter."""
    return find_code(output) is None and _OUT_OF_MEMORY.search(output) is not None
