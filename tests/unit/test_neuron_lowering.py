"""The Neuron targets' module: rules against PyTorch, programs run on the cpu device, names, aliases, origins."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from jaxlib import xla_client
from neuron_aot_runtime.contract.manifest import Artifact, Manifest, Program, Serving
from test_lowering import CASES, operator, to_jax
from toy import program_plan

from neuron_aot import lower
from neuron_aot.codegen import code_generator
from neuron_aot.execute import ProgramChecker
from neuron_aot.lower import hlo_proto
from neuron_aot.lower.neff_names import name_tensors
from neuron_aot.lower.rules import neuron, rules_for
from neuron_aot.models import family

RULES = rules_for("trn2")
SHAPES = [("prefill", 16, 16), ("prefill", 16, 64), ("decode", 1, 64), ("decode", 4, 64)]
# Indices are not negative in programs, and only a block table's rows are gathered from.
NARROWED = {"aten.floor_divide.default", "aten.remainder.Scalar", "aten.gather.default"}


def lowered(plan, **options):
    model = family(plan.model.architecture)
    return lower.lower_program(plan, model.program(plan), model.layout(plan.model), **options)


def text_of(hlo: bytes) -> str:
    return xla_client.XlaComputation(hlo).as_hlo_text()


@pytest.mark.parametrize("name", sorted(set(neuron.RULES) - NARROWED))
def test_rule_equals_pytorch(name):
    for arguments, keywords in CASES[name]:
        wanted = operator(name)(*arguments, **keywords)
        found = RULES[name](*(to_jax(argument) for argument in arguments), **keywords)
        assert tuple(found.shape) == tuple(wanted.shape)
        assert str(found.dtype) == str(wanted.dtype).removeprefix("torch.").replace("int64", "int32")
        atol = 1e-5 if wanted.dtype != torch.bfloat16 else 0.02
        np.testing.assert_allclose(np.asarray(found, np.float32), wanted.float().numpy(), atol=atol, rtol=1e-2)


@pytest.mark.parametrize("shape", [(7,), (3, 4)])
def test_index_arithmetic_equals_pytorch_on_what_programs_have(shape):
    x = torch.arange(np.prod(shape), dtype=torch.int32).reshape(shape)
    for name in ("aten.floor_divide.default", "aten.remainder.Scalar"):
        assert np.array_equal(np.asarray(RULES[name](to_jax(x), 3)), operator(name)(x, 3).numpy())
    table, index = torch.arange(12, dtype=torch.int32).reshape(3, 4), torch.tensor([[3], [0], [2]])
    assert np.array_equal(
        np.asarray(RULES["aten.gather.default"](to_jax(table), 1, to_jax(index))), table.gather(1, index)
    )


def test_argmax_takes_the_first_of_equal_values():
    x = torch.tensor([[1.0, 5.0, 5.0], [2.0, 2.0, 2.0]])
    assert np.asarray(RULES["aten.argmax.default"](to_jax(x), -1)).tolist() == [1, 0]


@pytest.mark.parametrize(("dtype", "greedy"), [("float32", False), ("float32", True), ("bfloat16", False)])
def test_programs_equal_their_definition(tmp_path, dtype, greedy):
    plans = [program_plan(*shape, dtype=dtype, greedy=greedy, target="trn2") for shape in SHAPES]
    layout, made = family("LlamaForCausalLM").layout(plans[0].model), {}
    for plan in plans:
        program = lowered(plan)
        code_generator("cpu").generate(program.hlo, tmp_path / plan.name)
        made[plan.name] = (plan, Program(
            name=plan.name, phase=plan.phase, bucket=plan.bucket, program_key="0" * 64,
            artifact=Artifact(format="xla-cpu", digest="sha256:" + "0" * 64, size=0),
            inputs=program.inputs, outputs=program.outputs,
        ))  # fmt: skip
    manifest = Manifest(
        target="trn2", world_size=1, model=layout.spec, serving=Serving(engine={}, neuron_config={}),
        kv_cache=layout.kv_cache, params=layout.params, states=layout.states, weight_map=layout.weight_map,
        programs=[program for _, program in made.values()], requires={}, toolchain={},
    )  # fmt: skip
    assert {spec.dtype for spec in layout.states} == {dtype}
    checker = ProgramChecker(manifest, layout)
    for plan, program in made.values():
        result = checker.check(plan, program, tmp_path / plan.name)
        assert result.ok, result
    checker.close()


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_module_has_no_call_no_pair_reduction_and_no_wide_index(phase, greedy):
    text = text_of(lowered(program_plan(phase, 8, 64, dtype="bfloat16", greedy=greedy, target="trn2")).hlo)
    opcodes = Counter(re.findall(r" = \S+ ([a-z-]+)\(", text))
    assert not opcodes.keys() & {"call", "remainder", "sign", "or", "and", "get-tuple-element", "bitcast-convert"}
    assert not {"s64", "u64", "u16", "f64"} & set(re.findall(r"\b([a-z]+\d+)\[", text))


def test_tensors_are_named_and_states_must_alias():
    plan = program_plan("decode", 2, 64, dtype="bfloat16", target="trn2")
    program = lowered(plan)
    layout = family("LlamaForCausalLM").layout(plan.model)
    names = [spec.name for spec in (*layout.params, *layout.states, *program.inputs)]
    entry = hlo_proto.entry_computation(hlo_proto.parse_module(program.hlo))
    found = {
        item.parameter_number: {pair.key: pair.value for pair in item.frontend_attributes.map}
        for item in entry.instructions
        if item.opcode == "parameter"
    }
    assert [found[index] for index in range(len(names))] == [{"neff_input_names": name} for name in names]
    (root,) = (item for item in entry.instructions if item.id == entry.root_id)
    (pair,) = root.frontend_attributes.map
    assert (pair.key, pair.value) == ("neff_output_names", "logits,layers.0.k,layers.0.v,layers.1.k,layers.1.v")
    head = text_of(program.hlo).partition("\n")[0]
    assert head.count("must-alias") == len(layout.states) and "may-alias" not in head


def test_naming_refuses_what_it_cannot_name():
    hlo = lowered(program_plan("decode", 2, 64)).hlo
    with pytest.raises(ValueError, match="not 1 and 1"):
        name_tensors(hlo, ["x"], ["y"])
    module = hlo_proto.entry_computation(hlo_proto.parse_module(hlo))
    count = sum(item.opcode == "parameter" for item in module.instructions)
    with pytest.raises(ValueError, match="comma"):
        name_tensors(hlo, ["a,b"] * count, ["y"] * 5)
    with pytest.raises(ValueError, match="HloModuleProto"):
        hlo_proto.parse_module(b"\x00\x01nonsense")


def test_each_instruction_leads_to_its_model_line_and_the_module_stays_the_same():
    plan = program_plan("decode", 2, 64, dtype="bfloat16", target="trn2")
    plain, traced = lowered(plan), lowered(plan, origins=True)
    assert plain.hlo == traced.hlo and not plain.origins
    entry = hlo_proto.entry_computation(hlo_proto.parse_module(traced.hlo))
    lines = {item.opcode: traced.origins.get(item.id) for item in entry.instructions}
    assert "kv_write" in lines["scatter"] and "llama.py" in lines["scatter"]
    told = [item for item in entry.instructions if item.opcode not in ("parameter", "constant", "tuple", "broadcast")]
    assert all(item.id in traced.origins for item in told)


SCRIPT = """
import hashlib
from toy import program_plan
from neuron_aot.make import default_toolchain
plan = program_plan("decode", 2, 64, dtype="bfloat16", greedy=True, target="trn2")
print(hashlib.sha256(default_toolchain().lower_plan(plan).hlo).hexdigest())
"""


def test_the_named_module_has_the_same_bytes_in_every_process(tmp_path):
    found = []
    for seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        found.append(done.stdout.split()[-1])
    plan = program_plan("decode", 2, 64, dtype="bfloat16", greedy=True, target="trn2")
    assert found[0] == found[1] == hashlib.sha256(lowered(plan).hlo).hexdigest()
