"""Every lowering rule against PyTorch; whole programs run on the cpu device; the module's own properties."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from neuron_aot_runtime.contract.errors import IncompatibleArtifactError, IntegrityError, LoweringError
from neuron_aot_runtime.contract.manifest import Artifact, Manifest, Program, Serving
from neuron_aot_runtime.device.cpu import CpuDevice
from toy import decode_inputs, model_plan, prefill_inputs, program_plan

from neuron_aot import lower
from neuron_aot.codegen import code_generator
from neuron_aot.execute import ProgramChecker
from neuron_aot.lower.hlo import without_field
from neuron_aot.lower.interpret import jax_function
from neuron_aot.lower.rules import collectives, rules_for
from neuron_aot.lower.trace import trace
from neuron_aot.models import blocks, family

aten = torch.ops.aten


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ints(*shape, low=-9, high=9):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(3), dtype=torch.int32)


def cache(seed):
    return normal(6, 2, 4, 8, seed=seed)


# One case or more for every rule: (arguments, keyword arguments).
CASES = {
    "aten.mul.Tensor": [((normal(2, 3), normal(3)), {}), ((normal(2, dtype=torch.bfloat16), normal(2, seed=1)), {}), ((ints(4), 3), {})],
    "aten.add.Tensor": [((normal(2, 3), normal(2, 3, seed=1)), {"alpha": 2}), ((ints(3), 1), {})],
    "aten.sub.Tensor": [((normal(2), normal(2, seed=1)), {"alpha": 3}), ((ints(3), 1), {})],
    "aten.neg.default": [((normal(3),), {})],
    "aten.rsqrt.default": [((normal(5).abs() + 0.1,), {}), ((normal(5, dtype=torch.bfloat16).abs() + 1,), {})],
    "aten.cos.default": [((normal(5) * 100,), {}), ((normal(5, dtype=torch.bfloat16),), {})],
    "aten.sin.default": [((normal(5) * 100,), {})],
    "aten.silu.default": [((normal(9) * 5,), {}), ((normal(9, dtype=torch.bfloat16),), {})],
    "aten.floor_divide.default": [((ints(9), 4), {})],
    "aten.remainder.Scalar": [((ints(9), 4), {})],
    "aten.lt.Tensor": [((ints(4), ints(4) + 1), {})],
    "aten.gt.Tensor": [((ints(4), ints(1)), {})],
    "aten.eq.Tensor": [((ints(4), ints(4).flip(0)), {})],
    "aten.ge.Scalar": [((ints(9), 2), {})],
    "aten.masked_fill.Scalar": [((normal(2, 3), ints(3) > 0, -1e30), {})],
    "aten.amax.default": [((normal(3, 5), [-1], True), {})],
    "aten.slice.Tensor": [((normal(2, 5), 1, 1, 4), {}), ((normal(5, 2), 0, 2, 9223372036854775807), {})],
    "aten.unsqueeze.default": [((normal(2, 3), -1), {}), ((normal(2, 3), 0), {})],
    "aten.squeeze.dim": [((normal(2, 1, 3), 1), {})],
    "aten.view.default": [((normal(2, 6), [3, 4]), {}), ((normal(2, 6), [-1, 2]), {})],
    "aten.cat.default": [(([normal(2, 3), normal(2, 1)], -1), {}), (([normal(2, 3), normal(1, 3)],), {})],
    "aten.lift_fresh_copy.default": [((normal(2),), {})],
    "aten._to_copy.default": [((normal(4),), {"dtype": torch.bfloat16}), ((ints(4),), {"dtype": torch.float32}), ((ints(4) > 0,), {"dtype": torch.int32})],
    "aten.pow.Tensor_Scalar": [((normal(4), 2), {}), ((normal(4).abs(), 0.5), {})],
    "aten.mean.dim": [((normal(3, 5), [-1], True), {}), ((normal(3, 5, dtype=torch.bfloat16), [0]), {})],
    "aten.argmax.default": [((torch.tensor([[1.0, 3.0, 3.0], [2.0, 1.0, 2.0]]), -1), {}), ((normal(4, 7), 0), {"keepdim": True})],
    "aten.arange.default": [((7,), {"dtype": torch.int32})],
    "aten.split.Tensor": [((normal(2, 7), 3, -1), {})],
    "aten.split_with_sizes.default": [((normal(6, 2), [1, 3, 2]), {})],
    "aten.index_select.default": [((normal(5, 3), 0, torch.tensor([4, 0, 4], dtype=torch.int32)), {})],
    "aten.gather.default": [((normal(3, 5), 1, torch.tensor([[4], [0], [2]])), {})],
    "_operator.getitem": [],  # of a tuple: exercised by split
    "neuron_aot.linear.default": [
        ((normal(1, 16), normal(24, 16, seed=1), normal(24, seed=2)), {}),
        ((normal(5, 16), normal(24, 16, seed=1)), {}),
    ],
    "neuron_aot.lm_head.default": [((normal(3, 16), normal(40, 16, seed=1)), {})],
    "neuron_aot.kv_write.default": [((cache(0), normal(3, 2, 8, seed=1), torch.tensor([23, 4, 9], dtype=torch.int32)), {})],
    "neuron_aot.paged_attention.default": [
        ((normal(3, 6, 8), cache(1), cache(2), torch.tensor([[4, 1], [2, 0], [5, 3]], dtype=torch.int32),
          torch.tensor([[6], [0], [7]], dtype=torch.int32), 0.3), {}),
        ((normal(5, 6, 8), cache(1), cache(2), torch.tensor([[4, 1, 5]], dtype=torch.int32),
          torch.arange(3, 8, dtype=torch.int32)[None], 0.3), {}),
    ],
}  # fmt: skip
RULES = rules_for("cpu")


def operator(name: str):
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def to_jax(value):
    import jax.numpy as jnp

    if isinstance(value, torch.Tensor):
        narrow = value.to(torch.int32) if value.dtype == torch.int64 else value
        return (
            jnp.asarray(narrow.float().numpy()).astype(jnp.bfloat16)
            if value.dtype == torch.bfloat16
            else jnp.asarray(narrow.numpy())
        )
    return (
        [to_jax(item) for item in value]
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor)
        else value
    )


def test_every_rule_has_a_case():
    # A collective needs its other ranks: see test_tensor_parallel.
    assert set(CASES) == set(RULES) - set(collectives.RULES)


@pytest.mark.parametrize(
    ("name", "case"), [(name, index) for name, cases in CASES.items() for index in range(len(cases))]
)
def test_rule_equals_pytorch(name, case):
    arguments, keywords = CASES[name][case]
    wanted = operator(name)(*arguments, **keywords)
    found = RULES[name](*(to_jax(argument) for argument in arguments), **keywords)
    wanted, found = (side if isinstance(side, (list, tuple)) else [side] for side in (wanted, found))
    assert len(wanted) == len(found)
    for theirs, ours in zip(wanted, found, strict=True):
        assert tuple(ours.shape) == tuple(theirs.shape)
        assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.").replace("int64", "int32")
        # One unit in the last place of bfloat16 (at most 2**-7) where that is the type.
        tolerance = {"atol": 1e-5, "rtol": 1e-5} if theirs.dtype != torch.bfloat16 else {"atol": 1e-6, "rtol": 2**-7}
        np.testing.assert_allclose(np.asarray(ours, np.float32), theirs.float().numpy(), **tolerance)


def test_cache_as_raw_bits_holds_the_same_bfloat16_values():
    k, v = (cache(seed).bfloat16() for seed in (1, 2))
    new, slots = normal(2, 2, 8, seed=5, dtype=torch.bfloat16), torch.tensor([9, 22], dtype=torch.int32)
    bits = to_jax(k.view(torch.uint16))
    written = RULES["neuron_aot.kv_write.default"](bits, to_jax(new), to_jax(slots))
    wanted = blocks.kv_write(k, new, slots)
    assert np.array_equal(np.asarray(written), wanted.view(torch.uint16).numpy())

    q, tables = normal(2, 6, 8, dtype=torch.bfloat16), torch.tensor([[2, 1], [5, 3]], dtype=torch.int32)
    positions = torch.tensor([[7], [4]], dtype=torch.int32)
    found = RULES["neuron_aot.paged_attention.default"](
        to_jax(q), written, to_jax(v.view(torch.uint16)), to_jax(tables), to_jax(positions), 0.35
    )
    theirs = blocks.paged_attention(q, wanted, v, tables, positions, 0.35)
    np.testing.assert_allclose(np.asarray(found, np.float32), theirs.float().numpy(), atol=0.03)


def lowered(plan):
    model = family(plan.model.architecture)
    return lower.lower_program(plan, model.program(plan), model.layout(plan.model))


def test_unknown_operators_are_named_with_their_model_line():
    def forward(params, states, inputs):
        return {"logits": torch.erfinv(params["embed"])}, states  # the odd line

    layout = family("LlamaForCausalLM").layout(model_plan())
    graph, _ = trace(forward, layout, ())
    with pytest.raises(LoweringError) as caught:
        jax_function(graph, RULES, program="decode_b1_c8")
    message = str(caught.value)
    assert "aten.erfinv.default" in message and "test_lowering.py" in message and "the odd line" in message
    assert caught.value.exit_code == 7


def test_a_rule_that_differs_from_pytorch_is_caught():
    layout = family("LlamaForCausalLM").layout(model_plan())
    graph, _ = trace(lambda params, states, inputs: ({"x": -params["embed"]}, states), layout, ())
    wrong = {"aten.neg.default": lambda x: (-x)[:1]}
    run = jax_function(graph, wrong, program="decode_b1_c8")
    import jax.numpy as jnp

    with pytest.raises(LoweringError, match="aten.neg.default"):
        run(*(jnp.zeros(spec.shape) for spec in (*layout.params, *layout.states)))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_module_is_narrow_aliased_and_complete(phase):
    from jaxlib import xla_client

    plan = program_plan(phase, 8, 64, dtype="bfloat16")
    layout = family("LlamaForCausalLM").layout(plan.model)
    computation = xla_client.XlaComputation(lowered(plan).hlo)
    text = computation.as_hlo_text()
    assert not {"s64", "u64", "f64", "c64"} & set(text.replace("[", " ").replace("(", " ").split())
    aliases = text.partition("input_output_alias={")[2].partition("}, entry")[0]
    assert aliases.count("may-alias") == len(layout.states)
    for index in range(len(layout.states)):
        assert f"{{{1 + index}}}: ({len(layout.params) + index}," in aliases
    shape = computation.program_shape()
    assert len(shape.parameter_shapes()) == len(layout.params) + len(layout.states) + (4 if phase == "prefill" else 3)
    # Dots take bfloat16 and accumulate in float32.
    dots = [line for line in text.splitlines() if " dot(" in line]
    assert dots and all("f32[" in line.partition(" dot(")[0] for line in dots)


SCRIPT = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from toy import program_plan
from neuron_aot import lower
from neuron_aot.models import family
import neuron_aot
for plan in (program_plan("decode", 4, 64), program_plan("prefill", 16, 32, dtype="bfloat16")):
    model = family(plan.model.architecture)
    program = lower.lower_program(plan, model.program(plan), model.layout(plan.model))
    print(hashlib.sha256(program.hlo).hexdigest())
print(neuron_aot.__file__)
"""


def test_bytes_are_the_same_in_any_process_folder_and_account(tmp_path):
    """Two processes with another hash seed, home, folder, and even the sources in another place and shifted."""
    copy = tmp_path / "elsewhere"
    package = Path(lower.__file__).parents[1]
    shutil.copytree(package, copy / "neuron_aot")
    for source in (copy / "neuron_aot").rglob("*.py"):
        text = source.read_text()
        source.write_text(text.replace("from __future__", "# shifted\n\n\nfrom __future__", 1))
    results = []
    for number, path in enumerate(("", str(copy))):
        environment = {**os.environ, "PYTHONHASHSEED": str(number * 77), "HOME": str(tmp_path / str(number))}
        environment |= {"PYTHONPATH": path, "USER": f"user{number}", "JAX_ENABLE_COMPILATION_CACHE": "0"}
        (tmp_path / str(number)).mkdir()
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)],
            env=environment, cwd=tmp_path / str(number), capture_output=True, text=True, check=True,
        )  # fmt: skip
        results.append(done.stdout.split())
    assert results[0][:2] == results[1][:2]
    assert results[0][2] != results[1][2], "the second process was meant to run the copied sources"


def test_a_field_is_dropped_from_a_message_and_nothing_else():
    message = bytes([0x08, 0x96, 0x01, 0x28, 0x07, 0x12, 0x02, 0x28, 0x01, 0x2D, 1, 2, 3, 4])
    assert without_field(message, 5) == bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x28, 0x01])
    with pytest.raises(ValueError):
        without_field(message[:-1], 5)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """dtype -> (manifest, layout, {program name: (plan, program, artifact file)}) of a toy model."""
    folder = tmp_path_factory.mktemp("programs")

    def build(dtype, greedy=False):
        generator, made = code_generator("cpu"), {}
        plans = [
            program_plan(phase, size, context, dtype=dtype, greedy=greedy)
            for phase, size, context in (("prefill", 16, 16), ("prefill", 16, 64), ("decode", 1, 64), ("decode", 4, 64))
        ]
        layout = family("LlamaForCausalLM").layout(plans[0].model)
        for plan in plans:
            program = lowered(plan)
            artifact = folder / f"{dtype}-{greedy}-{plan.name}"
            generator.generate(program.hlo, artifact)
            made[plan.name] = (plan, Program(
                name=plan.name, phase=plan.phase, bucket=plan.bucket, program_key="0" * 64,
                artifact=Artifact(format="xla-cpu", digest="sha256:" + "0" * 64, size=0),
                inputs=program.inputs, outputs=program.outputs,
            ), artifact)  # fmt: skip
        manifest = Manifest(
            target="cpu", world_size=1, model=layout.spec, serving=Serving(engine={}, neuron_config={}),
            kv_cache=layout.kv_cache, params=layout.params, states=layout.states, weight_map=layout.weight_map,
            programs=[program for _, program, _ in made.values()], requires=generator.requires(), toolchain={},
        )  # fmt: skip
        return manifest, layout, made

    return functools.cache(build)


@pytest.mark.parametrize(("dtype", "greedy"), [("float32", False), ("float32", True), ("bfloat16", False)])
def test_programs_equal_their_definition_on_the_device(compiled, dtype, greedy):
    manifest, layout, made = compiled(dtype, greedy)
    checker = ProgramChecker(manifest, layout)
    for plan, program, artifact in made.values():
        result = checker.check(plan, program, artifact)
        assert result.ok, result
    checker.close()


def test_a_wrong_definition_is_noticed(compiled, monkeypatch):
    manifest, layout, made = compiled("float32", False)
    checker = ProgramChecker(manifest, layout)
    monkeypatch.setattr(blocks, "rms_norm", lambda x, weight, eps: x * weight)
    assert not checker.check(*made["decode_b4_c64"]).ok


def test_the_cache_is_overwritten_in_place_and_padding_stays_in_the_null_block(compiled):
    manifest, layout, made = compiled("bfloat16", False)
    device = CpuDevice()
    checker_params = ProgramChecker(manifest, layout).params
    for spec in layout.params:
        device.put_param(spec, checker_params[spec.name])
    device.allocate_states(layout.states)
    for _, program, artifact in made.values():
        device.load(manifest, program, artifact)
    prefill = prefill_inputs([1, 2, 3], computed=0, size=16, context=16, blocks=[4, 9])
    device.execute("prefill_s16_c16", prefill)
    state = device.read_state("layers.1.v")
    assert state.dtype == np.uint16 and set(np.nonzero(state.any((1, 2, 3)))[0]) <= {0, 4}
    assert set(np.nonzero(state[4].any((0, 2)))[0]) == {0, 1, 2}
    addresses = []
    for position in (3, 4, 5):
        device.execute("decode_b4_c64", decode_inputs([(7, position, [4, 9])], size=4, context=64))
        addresses.append(device.state_address("layers.1.v"))
    assert len(set(addresses)) == 1
    assert set(np.nonzero(device.read_state("layers.1.v")[4].any((0, 2)))[0]) == {0, 1, 2, 3, 4, 5}
    device.close()


def test_an_artifact_of_another_build_host_or_signature_is_refused(compiled, tmp_path):
    manifest, _, made = compiled("float32", False)
    _, program, artifact = made["decode_b1_c64"]
    _, other, _ = made["decode_b4_c64"]
    content = artifact.read_bytes()

    def refused(data: bytes, error, text: str, program=program):
        path = tmp_path / "artifact"
        path.write_bytes(data)
        with pytest.raises(error) as caught:
            CpuDevice().load(manifest, program, path)
        assert text in str(caught.value)

    version = manifest.requires["jaxlib"].encode()
    refused(
        content.replace(b'"' + version + b'"', b'"' + b"0" * len(version) + b'"', 1),
        IncompatibleArtifactError,
        "jaxlib",
    )
    refused(content.replace(b"64bit", b"zzbit", 1), IncompatibleArtifactError, "zzbit")
    refused(content, IncompatibleArtifactError, "other tensors", program=other)
    refused(b"\x7fNEFF" + content, IntegrityError, "not a whole xla-cpu artifact")
    refused(content[:40], IntegrityError, "not a whole xla-cpu artifact")
    with pytest.raises(IncompatibleArtifactError, match="avx9000"):
        CpuDevice().check(manifest.requires | {"cpu_features": "sse2,avx9000"})
