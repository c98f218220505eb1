"""The neuron device: runs NEFFs on one logical core through nrtpy.

Weights and the KV cache are placed once. A state is bound as an input and as an output, the same tensor, so a program
overwrites it in place. Per-step inputs are written into tensors that live as long as the device; only a program's own
outputs are read back.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from ..contract.errors import ConfigError, DeviceError, IncompatibleArtifactError
from ..contract.manifest import RANK_INPUT, Manifest, Program, TensorSpec
from ..ranks import free_address
from ..settings import VISIBLE_CORES, read_settings, root_address, set_root_address
from .base import ALONE, Place
from .neff import check_version, read_header
from .nrt_errors import explain

TARGETS = ("inf2", "trn1", "trn1n", "trn2", "trn3")
ALIAS_SUFFIX = ".must_alias_input"  # the compiler appends it to an input that an output must overwrite
_DRIVER = Path("/dev/neuron0")


@dataclass(frozen=True)
class _Loaded:
    """One program, ready to run. ``arguments`` and ``results``: manifest name -> name in the NEFF.

    ``inputs`` and ``outputs``: tensors of the step, by manifest name.
    """

    model: object
    program: Program
    arguments: dict[str, str]
    results: dict[str, str]
    inputs: dict[str, object]
    outputs: dict[str, object]


class NeuronDevice:
    """See ``Device``. One rank on one logical core: that of its place, else the visible one of its rank."""

    loads_while_serving = False
    keeps_params = False

    def __init__(self, target: str, place: Place = ALONE) -> None:
        self.target = target
        self._place = place
        self._nrtpy = None
        self._programs: dict[str, _Loaded] = {}
        self._params: dict[str, object] = {}
        self._states: dict[str, object] = {}
        self._shared: dict[tuple, object] = {}
        self._bound: dict[str, tuple[dict, dict]] = {}
        # Programs are loaded by another thread while this one executes; nrtpy promises nothing about that.
        self._lock = threading.Lock()

    def check(self, requires: Mapping[str, str]) -> None:
        differences = []
        if importlib.util.find_spec("nrtpy") is None:
            found = "Neuron devices but no nrtpy" if _DRIVER.exists() else "no Neuron device and no nrtpy"
            differences.append(f"Neuron runtime: wanted nrtpy, found {found}")
        wanted = requires.get("logical_core_size")
        found = read_settings().logical_core_size
        if found is not None and wanted is not None and found != wanted:
            differences.append(f"logical core size: wanted {wanted}, found NEURON_LOGICAL_NC_CONFIG={found}")
        if requires.get("neuron_target", self.target) != self.target:
            differences.append(f"target: wanted {requires['neuron_target']}, found {self.target}")
        if differences:
            raise IncompatibleArtifactError(
                f"this host cannot run the bundle's {self.target} artifacts",
                details=differences,
                next_command="serve it on a host of its target with the Neuron runtime and nrtpy installed",
            )

    def load(self, manifest: Manifest, program: Program, artifact: Path) -> None:
        header = read_header(artifact)
        check_version(header, program.name)
        wanted = int(manifest.requires.get("logical_core_size", header.core_size))
        if header.core_size not in (0, wanted):
            raise IncompatibleArtifactError(
                f"{program.name}: the NEFF is for another logical core size",
                wanted=str(wanted),
                found=str(header.core_size),
                next_command="build the bundle again with `neuron-aot compile`",
            )
        with self._lock:
            self._load(manifest, program, artifact)

    def _load(self, manifest: Manifest, program: Program, artifact: Path) -> None:
        nrtpy = self._open()
        with _nrt_errors(f"loading {program.name}"):
            model = nrtpy.NrtpyModel.load_from_neff(
                str(artifact),
                name=program.name,
                core_id=0,
                cc_enabled=manifest.world_size > 1,
                rank_id=self._place.rank,
                world_size=manifest.world_size,
            )
        arguments, results = list(manifest.arguments(program)), list(manifest.results(program))
        bound_in = _bind(program.name, arguments, model.input_tensors_info, "input", ALIAS_SUFFIX)
        bound_out = _bind(program.name, results, model.output_tensors_info, "output", "")
        inputs = {spec.name: self._tensor(spec) for spec in program.inputs}
        if manifest.world_size > 1:
            inputs[RANK_INPUT].write_from_numpy(np.array([self._place.rank], np.int32))
        self._programs[program.name] = _Loaded(
            model=model,
            program=program,
            arguments=bound_in,
            results=bound_out,
            inputs=inputs,
            outputs={spec.name: self._tensor(spec) for spec in program.outputs},
        )

    def put_param(self, spec: TensorSpec, array: np.ndarray) -> None:
        if array.shape != spec.shape or array.dtype != _dtype(spec.dtype):
            raise ValueError(f"{spec.name}: wanted {spec.dtype} {spec.shape}, found {array.dtype} {array.shape}")
        self._params[spec.name] = self._put(spec.name, array)
        self._bound.clear()

    def allocate_states(self, specs: Sequence[TensorSpec]) -> None:
        for spec in specs:
            self._states[spec.name] = self._put(spec.name, np.zeros(spec.shape, _dtype(spec.dtype)))
        self._bound.clear()

    def execute(self, name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        loaded = self._programs[name]
        arguments, results = self._bound.get(name) or self._bind_tensors(loaded)
        with self._lock, _nrt_errors(f"running {name}"):
            for input_name, tensor in loaded.inputs.items():
                if input_name != RANK_INPUT:
                    tensor.write_from_numpy(np.ascontiguousarray(inputs[input_name]))
            loaded.model(inputs=arguments, outputs=results)
            return {spec.name: _as(loaded.outputs[spec.name].numpy(), spec) for spec in loaded.program.outputs}

    def _bind_tensors(self, loaded: _Loaded) -> tuple[dict, dict]:
        """The tensors of every call of a program, by their names in the NEFF; they stay the same."""
        given = self._params | self._states | loaded.inputs
        taken = self._states | loaded.outputs
        bound = (
            {name: given[spec] for spec, name in loaded.arguments.items()},
            {name: taken[spec] for spec, name in loaded.results.items()},
        )
        self._bound[loaded.program.name] = bound
        return bound

    def read_state(self, name: str) -> np.ndarray:
        """A copy of one KV state; for checks, never on the per-step path."""
        with _nrt_errors(f"reading {name}"):
            return np.array(self._states[name].numpy())

    def close(self) -> None:
        for held in (self._programs, self._params, self._states, self._shared, self._bound):
            held.clear()
        if self._nrtpy is not None:
            self._nrtpy.reset()
            self._nrtpy = None

    def _open(self):
        """nrtpy, told which core is ours before its first use; a process has one runtime."""
        if self._nrtpy is None:
            import nrtpy

            self._meet()
            with _nrt_errors("starting the Neuron runtime"):
                nrtpy.configure(visible_cores=[self._core()])
            self._nrtpy = nrtpy
        return self._nrtpy

    def _meet(self) -> None:
        """Tell this process's Neuron runtime where to find the other ranks'."""
        if (ranks := self._place.ranks) is not None:
            address = (root_address(self._place.replica) or free_address()) if ranks.rank == 0 else None
            set_root_address(ranks.gather("root address", address)[0])

    def _core(self) -> int:
        """The logical core of this rank."""
        place = self._place
        return visible_core(place.rank) if place.core is None else place.core

    def _put(self, name: str, array: np.ndarray):
        nrtpy = self._open()
        with _nrt_errors(f"placing {name}"):
            return nrtpy.NrtpyTensor.from_numpy(array, name=name, core_id=0)

    def _tensor(self, spec: TensorSpec):
        """A tensor for a step's input or output: programs run one at a time, so those of one kind share it."""
        key = (spec.name, spec.shape, spec.dtype)
        if key not in self._shared:
            self._shared[key] = self._put(spec.name, np.zeros(spec.shape, _dtype(spec.dtype)))
        return self._shared[key]


def _bind(program: str, specs: Sequence[TensorSpec], reported: Mapping, side: str, suffix: str) -> dict[str, str]:
    """Manifest name -> the loaded NEFF's name, by what it reports: ours, or ``input0…``, with the alias suffix or not.

    Raises IncompatibleArtifactError listing every tensor that is missing, additional, or of another shape or size.
    """
    bound, differences = {}, []
    for index, spec in enumerate(specs):
        names = (spec.name + suffix, spec.name, f"{side}{index}{suffix}", f"{side}{index}")
        name = next((name for name in names if name in reported), None)
        if name is None:
            differences.append(f"{side} {spec.name}: missing")
            continue
        bound[spec.name] = name
        info = reported[name]
        if tuple(info.shape) != spec.shape or info.size != spec.nbytes:
            differences.append(
                f"{side} {spec.name}: wanted {spec.dtype} {list(spec.shape)}, {spec.nbytes} bytes, "
                f"found {list(info.shape)}, {info.size} bytes"
            )
    taken = set(bound.values())
    differences += [f"{side} {name}: not in the manifest" for name in reported if name not in taken]
    if differences:
        raise IncompatibleArtifactError(
            f"{program}: the NEFF takes or gives other tensors than the manifest says",
            details=differences,
            next_command="build the bundle again with `neuron-aot compile`; report it if it persists",
        )
    return bound


@contextmanager
def _nrt_errors(doing: str) -> Iterator[None]:
    """Maps what nrtpy raises (NrtpyError and NrtError are RuntimeErrors) to DeviceError, saying what to do."""
    try:
        yield
    except RuntimeError as error:
        meaning, change = explain(error)
        raise DeviceError(f"{doing}: {meaning}", found=str(error), next_command=change) from error


def visible_core(index: int) -> int:
    """The ``index``-th logical core that this host's processes may use: all, or those of NEURON_RT_VISIBLE_CORES.

    Raises ConfigError where there are fewer.
    """
    text = read_settings().visible_cores
    if text is None:
        return index
    cores = parse_cores(text)
    if index >= len(cores):
        raise ConfigError(
            f"there is no core for rank {index}", wanted=f"{VISIBLE_CORES} with {index + 1} or more", found=text
        )
    return cores[index]


def parse_cores(text: str) -> list[int]:
    """``0-3,8`` as NEURON_RT_VISIBLE_CORES spells cores. Raises ConfigError."""
    cores: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ConfigError(f"{VISIBLE_CORES} names no cores", wanted="a list such as 0-3 or 0,2", found=text)
        cores += range(int(first), int(last or first) + 1)
    return cores


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def _as(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """``array`` in the manifest's dtype: nrtpy reports some types as integers of their size."""
    dtype = _dtype(spec.dtype)
    return array if array.dtype == dtype else array.view(dtype)
