"""Preflight: one deliberately bad module for each documented rule, and none for our own programs."""

from __future__ import annotations

import pytest
from commands import answer
from neuron_aot_runtime.contract.errors import CompileError
from toy import program_plan

from neuron_aot import preflight
from neuron_aot.codegen.compiler_list import listed_operators
from neuron_aot.lower import hlo_proto
from neuron_aot.lower.preflight import RULES, check_hlo, unlisted, violations_error
from neuron_aot.make import default_toolchain
from neuron_aot.preflight import check_program
from neuron_aot.targets import NEURON_TARGETS, NeuronTarget

TYPES = {name: number for number, name in hlo_proto.PRIMITIVE_TYPES.items()}
TRN2, TRN3 = NEURON_TARGETS["trn2"], NEURON_TARGETS["trn3"]
NEWER = NeuronTarget(name="newer", memory={2: 1}, float8=("f8e4m3fn",))


class Build:
    """A module of one computation, instruction by instruction."""

    def __init__(self) -> None:
        self.module = hlo_proto._module_class()()
        self.module.entry_computation_id = 1
        self.entry = self.module.computations.add(name="main", id=1)

    def __call__(self, opcode, kind="f32", dims=(4,), operands=(), computation=None, **fields):
        computation = computation or self.entry
        number = 100 * computation.id + len(computation.instructions)
        made = computation.instructions.add(name=f"{opcode}.{number}", opcode=opcode, id=number)
        made.shape.element_type = TYPES[kind]
        made.shape.dimensions.extend(dims)
        made.operand_ids.extend(item.id for item in operands)
        for name, value in fields.items():
            setattr(made, name, value)
        computation.root_id = number
        return made

    def parameter(self, kind="f32", dims=(4,)):
        return self("parameter", kind, dims)

    def reducer(self, opcode):
        computation = self.module.computations.add(name="reducer", id=len(self.module.computations) + 1)
        left = self("parameter", "s32", (), computation=computation)
        if opcode != "parameter":
            self(opcode, "s32", (), (left, left), computation=computation)
        return computation.id

    def window(self, made, **fields):
        made.window.dimensions.add(**{"size": 2, "stride": 1, "window_dilation": 1, "base_dilation": 1} | fields)
        return made


def dynamic(b):
    b.parameter().shape.is_dynamic_dimension.append(True)


def convolution(b, **window):
    b.window(b("convolution", operands=(b.parameter(), b.parameter())), **window)


def reduce_window(b, count=2, **window):
    b.window(b("reduce-window", operands=[b.parameter() for _ in range(count)]), **window)


def scatter(b, kind, opcode):
    made = b("scatter", kind, (4,), (b.parameter(kind), b.parameter("s32", (1,)), b.parameter(kind, (1,))))
    made.called_computation_ids.append(b.reducer(opcode))


def gather(b, length, opcode="gather"):
    iota = b("iota", "s32", (length,))
    iota.dimensions.append(0)
    index = b("reshape", "s32", (length, 1), (iota,))
    if opcode == "gather":
        made = b("gather", "f32", (length,), (b.parameter(), index))
        made.gather_dimension_numbers.start_index_map.append(0)
    else:
        made = b("scatter", "f32", (4,), (b.parameter(), index, b.parameter("f32", (length,))))
        made.scatter_dimension_numbers.scatter_dims_to_operand_dims.append(0)
        made.called_computation_ids.append(b.reducer("parameter"))


def call(b, target, *kinds, dims=(64,), config=b""):
    b(
        "custom-call",
        operands=[b.parameter(kind, dims) for kind in kinds],
        custom_call_target=target,
        backend_config=config,
    )


def constant(b, value):
    b("constant", "u64", ()).literal.u64s.append(value)


BAD = {
    "NCC_EMOD025": [dynamic],
    "NCC_EVRF001": [lambda b: b("triangular-solve", operands=(b.parameter(), b.parameter()))],
    "NCC_EVRF004": [lambda b: b.parameter("c64"), lambda b: b.parameter("c128")],
    "NCC_ESPP004": [lambda b: b.parameter("f4e2m1fn")],
    "NCC_EVRF005": [lambda b: b.parameter("f8e4m3fnuz"), lambda b: b.parameter("f8e5m2fnuz")],
    "NCC_EVRF051": [lambda b: b.parameter("f8e4m3fn")],
    "NCC_EVRF052": [lambda b: b.parameter("f8e4m3")],
    "NCC_ESFH002": [lambda b: constant(b, 1 << 32)],
    "NCC_EVRF006": [lambda b: b("rng-bit-generator", "u32", rng_algorithm=2)],
    "NCC_EVRF010": [
        lambda b: convolution(b, base_dilation=2, window_dilation=2),
        lambda b: convolution(b, base_dilation=2, stride=2),
    ],
    "NCC_EVRF013": [
        lambda b: b("topk", "s32", operands=(b.parameter("s32"),)),
        lambda b: call(b, "AwsNeuronTopK", "s32"),
    ],
    "NCC_EVRF016": [lambda b: scatter(b, "s32", "add")],
    "NCC_EVRF017": [
        lambda b: reduce_window(b, base_dilation=2),
        lambda b: reduce_window(b, window_dilation=2),
        lambda b: reduce_window(b, count=4),
    ],
    "NCC_EVRF022": [lambda b: b("shift-right-arithmetic", "s16", (4,), (b.parameter("s16"), b.parameter("s16")))],
    "NCC_EVRF031": [lambda b: gather(b, 5), lambda b: gather(b, 5, "scatter")],
    "NCC_EVRF035": [lambda b: b("dot", "s32", operands=(b.parameter("s8"), b.parameter("s8")))],
    "NCC_EVRF061": [
        lambda b: b("all-reduce", "s32", operands=(b.parameter("s32"),)),
        lambda b: b("reduce-scatter", "u8", operands=(b.parameter("u8"),)),
    ],
    "NCC_EVRF062": [lambda b: b("power", "s64", (4,), (b.parameter("s64"), b.parameter("s64")))],
    "NCC_EHCA005": [lambda b: call(b, "MyKernel", "f32")],
    "NCC_EVRF036": [
        lambda b: call(b, "AwsNeuronQuantizeMX", "f32"),
        lambda b: call(b, "AwsNeuronQuantizeMX", "bf16", dims=(40,)),
        lambda b: call(b, "__op$block_scaled_dot", "u32", "u32", "u8"),
        lambda b: call(b, "__op$block_scaled_dot", "bf16", "u32", "u8", "u8"),
    ],
    "NCC_EVRF059": [
        lambda b: call(b, "AwsNeuronCustomNativeKernel", "f32"),
        lambda b: call(b, "AwsNeuronCustomNativeKernel", "f32", config=b'{"kernel": "/nowhere/kernel.json"}'),
    ],
    "NCC_EVRF064": [
        lambda b: b("reshape", "f32", (5,), (b.parameter(),)),
        lambda b: b("add", "f32", (4,), (b.parameter(), b.parameter("f32", (3,)))),
    ],
}
GOOD = [
    lambda b: b.parameter("f8e5m2"),
    lambda b: constant(b, (1 << 32) - 1),
    lambda b: b("rng-bit-generator", "u32", rng_algorithm=0),
    lambda b: convolution(b, stride=2, window_dilation=2),
    lambda b: b("topk", operands=(b.parameter(),)),
    lambda b: scatter(b, "s32", "parameter"),
    lambda b: scatter(b, "f32", "add"),
    lambda b: reduce_window(b, stride=2),
    lambda b: b("shift-right-arithmetic", "s32", (4,), (b.parameter("s32"), b.parameter("s32"))),
    lambda b: gather(b, 4),
    lambda b: b("dot", operands=(b.parameter("bf16"), b.parameter("bf16"))),
    lambda b: b("all-reduce", "bf16", operands=(b.parameter("bf16"),)),
    lambda b: call(b, "AwsNeuronSilu", "bf16"),
    lambda b: call(b, "AwsNeuronQuantizeMX", "bf16"),
    lambda b: call(b, "__op$block_scaled_dot", "u32", "u32", "u8", "u8"),
    lambda b: call(b, "AwsNeuronCustomNativeKernel", "f32", config=f'{{"kernel": "{__file__}"}}'.encode()),
]


def check(build, target=TRN2, **options):
    made = Build()
    build(made)
    return check_hlo(hlo_proto.serialize(made.module), target, program="decode_b1_c64", **options)


def test_every_rule_has_a_bad_module():
    assert {rule.codes[0] for rule in RULES} == set(BAD)


@pytest.mark.parametrize(
    ("code", "case"), [(code, index) for code, cases in BAD.items() for index in range(len(cases))]
)
def test_a_bad_module_is_refused_by_its_rule_alone(code, case):
    (violation,) = check(BAD[code][case], NEWER if code == "NCC_EVRF052" else TRN2)
    assert violation.codes[0] == code and violation.fix and violation.program == "decode_b1_c64"


@pytest.mark.parametrize("case", range(len(GOOD)))
def test_what_a_rule_allows_passes(case):
    assert check(GOOD[case]) == []


def test_float8_follows_the_target():
    assert check(lambda b: b.parameter("f8e4m3"), TRN2) == check(lambda b: b.parameter("f8e4m3fn"), TRN3) == []


@pytest.mark.parametrize("target", NEURON_TARGETS)
@pytest.mark.parametrize("greedy", [False, True])
def test_our_programs_are_clean(target, greedy):
    toolchain = default_toolchain()
    for phase, size, context in (("prefill", 16, 64), ("decode", 1, 64), ("decode", 4, 64)):
        assert (
            toolchain.preflight(program_plan(phase, size, context, dtype="bfloat16", greedy=greedy, target=target))
            == []
        )


def test_a_violation_names_instruction_model_line_rule_and_fix():
    (violation,) = check(
        lambda b: b("dot", "s32", operands=(b.parameter("s8"), b.parameter())), origins={102: "llama.py:7"}
    )
    text = str(violations_error([violation] * 25, "trn2"))
    for part in ("NCC_EVRF035", "dot.102", "llama.py:7", "works on s8", "no dot of integers", "and 5 more", "trn2"):
        assert part in text
    assert violation.as_dict()["codes"] == ["NCC_EVRF035"]


def test_the_cpu_targets_own_module_would_be_refused_with_its_model_lines():
    toolchain, plan = default_toolchain(), program_plan("decode", 2, 64, dtype="bfloat16")
    found = check_hlo(toolchain.lower_plan(plan).hlo, TRN2, program=plan.name)
    assert {violation.codes[0] for violation in found} == {"NCC_EVRF001"}


def test_an_operator_that_the_installed_compiler_does_not_list_is_a_violation(simulator):
    plan = program_plan("decode", 1, 64, dtype="bfloat16", target="trn2")
    assert check_program(plan, default_toolchain(), unlisted(listed_operators()), print) == []
    simulator.tell(unlisted=["Rsqrt"])
    found = check_program(plan, default_toolchain(), unlisted(listed_operators()), print)
    assert found
    for violation in found:
        assert violation.codes[0] == "NCC_EVRF001" and violation.instruction.startswith("rsqrt ") and violation.line
        assert violation.found == "it is not in the installed compiler's own list"


def test_preflight_asks_the_installed_compiler_and_says_when_there_is_none(run, simulator, monkeypatch):
    asked = []
    monkeypatch.setattr(preflight, "preflight_recipe", lambda *args, unlisted, **options: asked.append(unlisted) or [])
    simulator.tell(unlisted=["Rsqrt", "Exp"])
    command = ("preflight", "recipe.yaml", "--target", "trn2", "--json")
    assert answer(run(*command))["unlisted_operators"] == ["exponential", "rsqrt"]
    monkeypatch.setenv("PATH", "")
    result = run(*command)
    assert answer(result)["unlisted_operators"] is None and "neuronx-cc is not on the PATH" in result.stderr
    assert asked == [{"exponential", "rsqrt"}, frozenset()]


@pytest.mark.parametrize("answered", ["exit 1", "echo usage"])
def test_a_compiler_that_tells_no_list_is_not_taken_at_its_word(tmp_path, monkeypatch, answered):
    """Else every operator would count as refused."""
    (tmp_path / "neuronx-cc").write_text(f"#!/bin/sh\n{answered}\n")
    (tmp_path / "neuronx-cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompileError, match="does not list its operators"):
        listed_operators()
