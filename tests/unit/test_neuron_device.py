"""The neuron device on the simulator's nrtpy: binding by what a NEFF reports, placement, errors."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from neuron_aot_runtime import device as devices
from neuron_aot_runtime.contract.errors import ConfigError, DeviceError, IncompatibleArtifactError, IntegrityError
from neuron_aot_runtime.contract.manifest import Artifact, Manifest, Program, Serving, TensorSpec
from neuron_aot_runtime.device import neuron
from neuron_aot_runtime.device.nrt_errors import STATUSES, explain
from neuron_aot_runtime.settings import root_address
from toy import decode_inputs, model_plan, prefill_inputs, program_plan

from neuron_aot.codegen import code_generator
from neuron_aot.execute import ProgramChecker
from neuron_aot.make import default_toolchain
from neuron_aot.models import family
from neuron_aot.targets import NEURON_TARGETS, CompileOptions

SHAPES = (("prefill", 16, 16), ("decode", 2, 64))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """(folder, what was built in it): a build takes seconds."""
    return tmp_path_factory.mktemp("neffs"), {}


@pytest.fixture
def built(simulator, kept):
    """build(options, fault) -> (manifest, layout, {program name: NEFF})."""
    root, made = kept

    def build(options=None, fault=""):
        key = (options, fault)
        if key not in made:
            made[key] = make(options, fault, root / f"{len(made)}")
        return made[key]

    def make(options, fault, root, dtype="bfloat16"):
        simulator.tell(faults={"*": fault})
        generator, files, programs = code_generator("trn2", options or CompileOptions()), {}, []
        layout = family("LlamaForCausalLM").layout(model_plan(dtype=dtype, target="trn2"))
        for shape in SHAPES:
            plan = program_plan(*shape, dtype=dtype, target="trn2")
            lowered = default_toolchain().lower_plan(plan)
            folder = root / plan.name
            folder.mkdir(parents=True)
            generator.generate(lowered.hlo, folder / "artifact")
            files[plan.name] = folder / "artifact"
            programs.append(Program(
                name=plan.name, phase=plan.phase, bucket=plan.bucket, program_key="0" * 64,
                artifact=Artifact(format="neff", digest="sha256:" + "0" * 64, size=0),
                inputs=lowered.inputs, outputs=lowered.outputs,
            ))  # fmt: skip
        manifest = Manifest(
            target="trn2", world_size=1, model=layout.spec, serving=Serving(engine={}, neuron_config={}),
            kv_cache=layout.kv_cache, params=layout.params, states=layout.states, weight_map=layout.weight_map,
            programs=programs, requires=generator.requires(), toolchain={},
        )  # fmt: skip
        simulator.tell()
        return manifest, layout, files

    return build


@pytest.fixture
def nrtpy(simulator):
    sys.modules.pop("nrtpy", None)
    import nrtpy

    yield nrtpy
    nrtpy.reset()
    sys.modules.pop("nrtpy", None)


def opened(manifest, layout, files, *, params=True):
    device = devices.open_device("trn2")
    for program in manifest.programs:
        device.load(manifest, program, files[program.name])
    if params:
        for name, array in ProgramChecker(manifest, layout).params.items():
            device.put_param(next(spec for spec in layout.params if spec.name == name), array)
        device.allocate_states(layout.states)
    return device


def run(device):
    """A prompt, then three decode steps; returns every result."""
    found = [
        device.execute("prefill_s16_c16", prefill_inputs([1, 2, 3], computed=0, size=16, context=16, blocks=[4, 9]))
    ]
    for position in (3, 4, 5):
        inputs = decode_inputs([(7, position, [4, 9])], size=2, context=64)
        found.append(device.execute("decode_b2_c64", inputs))
    return [item["logits"] for item in found]


@pytest.mark.parametrize(
    "options", [CompileOptions(), CompileOptions(flags=("--enable-fast-loading-neuron-binaries",))]
)
def test_steps_on_one_cache_and_the_cache_is_written_in_place(built, nrtpy, options):
    manifest, layout, files = built(options=options)
    device = opened(manifest, layout, files)
    device.check(manifest.requires)
    held = dict(device._states)
    first = run(device)
    assert all(device._states[name] is tensor for name, tensor in held.items())
    state = device.read_state("layers.1.v")
    assert str(state.dtype) == "bfloat16" and set(np.nonzero(np.asarray(state, np.float32).any((1, 2, 3)))[0]) <= {0, 4}
    again = run(device)  # the same tokens over the same cache
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert nrtpy.calls[0] == ("configure", [0])
    device.close()
    assert nrtpy.calls[-1] == ("reset",)


def test_a_neff_with_the_compilers_own_names_is_bound_by_position(built, nrtpy):
    found = []
    for fault in ("", "unnamed"):
        device = opened(*built(fault=fault))
        found.append(run(device))
        device.close()
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_a_neff_with_other_names_is_refused_with_every_difference(built, nrtpy):
    with pytest.raises(IncompatibleArtifactError, match="other tensors") as caught:
        opened(*built(fault="names"), params=False)
    assert "input embed: missing" in str(caught.value) and "other0: not in the manifest" in str(caught.value)


def test_another_shape_or_size_is_refused(built):
    specs = [TensorSpec(name="x", role="input", shape=(4,), dtype="int32")]
    for shape, size in (((5,), 20), ((4,), 8)):
        with pytest.raises(IncompatibleArtifactError, match="p1") as caught:
            neuron._bind("p1", specs, {"x": SimpleNamespace(shape=shape, size=size)}, "input", "")
        assert "wanted int32 [4], 16 bytes" in str(caught.value)


def test_what_is_no_neff_and_what_is_for_another_core_size_is_refused(built, nrtpy, tmp_path):
    manifest, layout, files = built()
    (tmp_path / "cut").write_bytes(files["decode_b2_c64"].read_bytes()[:2000])
    with pytest.raises(IntegrityError):
        opened(manifest, layout, files | {"prefill_s16_c16": tmp_path / "cut"})
    other = manifest.model_copy(update={"requires": {"logical_core_size": "1"}})
    with pytest.raises(IncompatibleArtifactError, match="logical core size"):
        opened(other, layout, files)


@pytest.mark.parametrize(
    ("call", "status", "told"),
    [
        ("load", "NRT_RESOURCE", "num_gpu_blocks_override"),
        ("load", "NRT_UNSUPPORTED_NEFF_VERSION", "SDK release"),
        ("allocate", "NRT_RESOURCE", "device memory is exhausted"),
        ("execute", "NRT_EXEC_HW_ERR_NC_UE", "uncorrectable"),
        ("execute", "NRT_TIMEOUT", "did not answer"),
        ("execute", "NRT_SOMETHING_NEW", "the Neuron runtime failed"),
    ],
)
def test_runtime_errors_say_what_to_do(built, nrtpy, simulator, call, status, told):
    manifest, layout, files = built()
    device = opened(manifest, layout, files) if call == "execute" else None
    simulator.tell(runtime={call: status})
    with pytest.raises(DeviceError) as caught:
        run(device or opened(manifest, layout, files))
    assert told in str(caught.value) and status in str(caught.value) and caught.value.exit_code == 9
    assert caught.value.next_command


def test_every_status_has_a_meaning_and_an_advice():
    assert all(meaning and advice for meaning, advice in STATUSES.values())
    assert "NRT_TIMEOUT" in explain(RuntimeError("nrt_execute failed: NRT_TIMEOUT (5)"))[0]


def test_ranks_take_the_visible_cores_in_order(monkeypatch):
    def core(rank, given=None):
        return neuron.NeuronDevice("trn2", devices.Place(rank=rank, world_size=4, core=given))._core()

    assert core(3) == 3
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "4-6, 9")
    assert [core(rank) for rank in range(4)] == [4, 5, 6, 9]
    assert core(0, given=6) == 6
    with pytest.raises(ConfigError, match="no core for rank 4"):
        core(4)
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "all")
    with pytest.raises(ConfigError, match="names no cores"):
        core(0)


def test_each_replica_meets_at_a_port_of_its_own(monkeypatch):
    monkeypatch.delenv("NEURON_RT_ROOT_COMM_ID", raising=False)
    assert root_address(3) is None
    monkeypatch.setenv("NEURON_RT_ROOT_COMM_ID", "10.0.0.1:62182")
    assert [root_address(replica) for replica in (0, 2)] == ["10.0.0.1:62182", "10.0.0.1:62184"]
    for wrong in ("10.0.0.1", ":62182", "host:port", "host:65535"):
        monkeypatch.setenv("NEURON_RT_ROOT_COMM_ID", wrong)
        with pytest.raises(ConfigError, match="NEURON_RT_ROOT_COMM_ID is no address"):
            root_address(1)


def test_the_cpu_target_needs_no_core_of_its_own(monkeypatch):
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0")
    assert devices.core_of("cpu", 3) == 3
    with pytest.raises(ConfigError, match="no core for rank 3"):
        devices.core_of("trn2", 3)


def test_a_host_without_the_runtime_or_with_other_cores_is_refused(monkeypatch):
    monkeypatch.delitem(sys.modules, "nrtpy", raising=False)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    with pytest.raises(IncompatibleArtifactError) as caught:
        devices.open_device("trn2").check({"neuron_target": "trn1", "logical_core_size": "2"})
    for part in ("wanted nrtpy", "NEURON_LOGICAL_NC_CONFIG=1", "target: wanted trn1"):
        assert part in str(caught.value)


def test_params_are_checked(nrtpy):
    spec = TensorSpec(name="w", role="param", shape=(2,), dtype="bfloat16")
    with pytest.raises(ValueError, match="w: wanted bfloat16"):
        devices.open_device("trn2").put_param(spec, np.zeros(2, np.float32))


def test_the_runtime_knows_every_target():
    assert set(neuron.TARGETS) == set(NEURON_TARGETS)
    with pytest.raises(IncompatibleArtifactError, match="no device"):
        devices.open_device("abacus")
