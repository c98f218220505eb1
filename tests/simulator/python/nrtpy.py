"""``nrtpy`` for tests: the documented API over XLA:CPU; it runs what the simulator's neuronx-cc made.

NEURON_SIMULATOR may name a JSON file with {"runtime": {"load" | "execute" | "allocate": "NRT_STATUS"}}: that call fails.
{"runtime": {"patience": SECONDS}} is how long a rank waits for the others at its first load (60 unless said). Device memory is the PJRT client's; every tensor is a copy, as on a device. A core belongs to the process that configured it: beside that file
lies one for each core, <file>.core<n>, locked by its process and holding its number.
"""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import struct
import tarfile
from collections import namedtuple
from pathlib import Path

import numpy as np
from nrtpy_ranks import ADDRESS, Ranks

TensorInfo = namedtuple("TensorInfo", "shape size")
calls: list[tuple] = []  # what was asked, for tests
_state = {"client": None, "device": None, "cores": None, "ranks": None, "claims": []}


class NrtpyError(RuntimeError):
    pass


class NrtError(NrtpyError):
    pass


def configure(visible_cores=None) -> None:
    if _state["client"] is not None:
        raise NrtpyError("configure() must come before first use")
    _claim(visible_cores or ())
    _state["cores"] = list(visible_cores) if visible_cores is not None else None
    calls.append(("configure", _state["cores"]))


def _claim(cores) -> None:
    if (told := os.environ.get("NEURON_SIMULATOR")) is None:
        return
    for core in cores:
        file = open(f"{told}.core{core}", "a+")  # noqa: SIM115 held for as long as the runtime lives
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NrtError(f"nrt_init failed with status NRT_RESOURCE: core {core} is another process's") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        _state["claims"].append(file)


def reset() -> None:
    for file in _state["claims"]:
        file.close()
    _state.update(client=None, device=None, cores=None, ranks=None, claims=[])
    calls.append(("reset",))


def _told() -> dict:
    path = os.environ.get("NEURON_SIMULATOR")
    return json.loads(Path(path).read_text()).get("runtime", {}) if path and Path(path).exists() else {}


def _fail(what: str) -> None:
    if what in (told := _told()):
        raise NrtError(f"nrt_{what} failed with status {told[what]}")


def _client():
    if _state["client"] is None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        from jaxlib import xla_client

        _state["client"] = xla_client.make_cpu_client()
        (_state["device"],) = _state["client"].local_devices()
    return _state["client"]


def _join(rank: int, world_size: int) -> Ranks:
    """This process as one rank of several: by its first load, and for as long as the runtime lives."""
    if _state["ranks"] is None:
        if _state["client"] is not None:
            raise NrtError("nrt_load failed with status NRT_INVALID: the simulator's ranks meet before any other use")
        if not 0 <= rank < world_size or not os.environ.get(ADDRESS):
            raise NrtError(f"nrt_load failed with status NRT_INVALID: rank {rank} of {world_size}, {ADDRESS}")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        try:
            _state["ranks"] = Ranks(rank, world_size, int(_told().get("patience", 60)))
        except TimeoutError as error:
            raise NrtError(f"nrt_load_collectives failed with status NRT_TIMEOUT: {error}") from error
        _state.update(client=_state["ranks"].client, device=_state["ranks"].device)
    joined = _state["ranks"]
    if (joined.rank, joined.world_size) != (rank, world_size):
        raise NrtError(f"nrt_load failed with status NRT_INVALID: this is rank {joined.rank} of {joined.world_size}")
    return joined


def _core(core_id: int) -> None:
    cores = len(_state["cores"]) if _state["cores"] is not None else 8
    if not 0 <= core_id < cores:
        raise NrtError(f"core {core_id} of {cores}: NRT_LOAD_NOT_ENOUGH_NC")


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that XLA takes as it lies."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class NrtpyTensor:
    def __init__(self, array: np.ndarray, name: str | None, core_id: int) -> None:
        _core(core_id)
        _fail("allocate")
        self.name, self.core_id = name, core_id
        self.shape, self.dtype = array.shape, array.dtype
        self._put(array)

    @classmethod
    def from_numpy(cls, array, name=None, core_id=0):
        return cls(np.ascontiguousarray(array), name, core_id)

    def _put(self, array: np.ndarray) -> None:
        from jaxlib import _jax

        _client()
        memory = _aligned(array)
        if self._is_bfloat16:
            import torch

            memory = torch.from_numpy(memory.view(np.uint16)).view(torch.bfloat16)
        self._buffer = _jax.dlpack_managed_tensor_to_buffer(memory.__dlpack__(), _state["device"], None, None)

    @property
    def _is_bfloat16(self) -> bool:
        return str(self.dtype) == "bfloat16"

    def write_from_numpy(self, array) -> None:
        if array.shape != self.shape or array.dtype.itemsize != self.dtype.itemsize:
            raise NrtpyError(f"{self.name}: wrote {array.dtype} {array.shape} to {self.dtype} {self.shape}")
        self._put(array.view(self.dtype))

    def numpy(self) -> np.ndarray:
        if self._is_bfloat16:
            import torch
            from jaxlib import _jax

            tensor = torch.from_dlpack(_jax.buffer_to_dlpack_managed_tensor(self._buffer))
            return tensor.view(torch.uint16).numpy().view(self.dtype).copy()
        return np.array(memoryview(self._buffer))


class NrtpyModel:
    def __init__(self, definition: dict, aliases: list, payload: bytes, name: str, core_id: int, ranks: Ranks | None):
        from jaxlib import xla_client

        self.name, self.core_id, self._aliases, self._ranks = name, core_id, dict(aliases), ranks
        self._inputs, self._outputs = definition["inputs"], definition["outputs"]
        self.input_tensors_info = {
            item["name"]: TensorInfo(tuple(item["shape"]), item["size"]) for item in self._inputs
        }
        self.output_tensors_info = {
            item["name"]: TensorInfo(tuple(item["shape"]), item["size"]) for item in self._outputs
        }
        client, options = _client(), ranks.options() if ranks is not None else None
        self._executable = client.deserialize_executable(payload, xla_client.DeviceList((_state["device"],)), options)

    @classmethod
    def load_from_neff(cls, neff_path, name=None, core_id=0, cc_enabled=False, rank_id=0, world_size=1):
        _core(core_id)
        _fail("load")
        calls.append(("load", name, core_id, cc_enabled, rank_id, world_size))
        raw = Path(neff_path).read_bytes()
        if len(raw) < 1024 or struct.unpack_from("<Q", raw, 8) != (1024,):
            raise NrtError("nrt_load failed with status NRT_INVALID")
        if struct.unpack_from("<Q", raw, 24)[0] != 2:
            raise NrtError("nrt_load failed with status NRT_UNSUPPORTED_NEFF_VERSION")
        data = raw[1024:]
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            files = {member.name: archive.extractfile(member).read() for member in archive.getmembers()}
        definition, about = json.loads(files["sg00/def.json"]), json.loads(files["neff.json"])
        if about["ranks"] != (world_size if cc_enabled else 1):
            raise NrtError(f"nrt_load failed with status NRT_INVALID: a program of {about['ranks']} ranks")
        ranks = _join(rank_id, world_size) if cc_enabled else None
        return cls(definition, about["aliases"], files["sg00/pe.bin"], name or "model", core_id, ranks)

    def __call__(self, inputs, outputs=None, **_):
        _fail("execute")
        wanted = [item["name"] for item in self._inputs]
        if set(inputs) != set(wanted):
            raise NrtError(f"{self.name}: NRT_EXEC_BAD_INPUT: {sorted(set(inputs) ^ set(wanted))[:4]}")
        for item in self._inputs:
            tensor = inputs[item["name"]]
            if list(tensor.shape) != item["shape"] or tensor.core_id != self.core_id:
                raise NrtError(
                    f"{self.name}: NRT_EXEC_BAD_INPUT: {item['name']} has {list(tensor.shape)} on {tensor.core_id}"
                )
        if outputs is not None:
            for argument, result in self._aliases.items():
                given = outputs.get(self._outputs[result]["name"])
                if given is not inputs[self._inputs[argument]["name"]]:
                    raise NrtError(
                        f"{self.name}: NRT_EXEC_BAD_INPUT: {self._outputs[result]['name']} is not its aliased input"
                    )
        made = {}
        for item, array in zip(self._outputs, self._run([inputs[name]._buffer for name in wanted]), strict=True):
            tensor = (outputs or {}).get(item["name"])
            if tensor is None:
                tensor = NrtpyTensor.__new__(NrtpyTensor)
                tensor.name, tensor.core_id = item["name"], self.core_id
                tensor.shape, tensor.dtype = tuple(item["shape"]), array.dtype
            tensor._buffer = array
            made[item["name"]] = tensor
        return made

    def _run(self, buffers: list) -> list:
        """The finished results; with several ranks, all of them run it."""
        try:
            results = self._executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
            arrays = [shards[0] for shards in results]
            for array in arrays:
                array.block_until_ready()
            if self._ranks is not None:
                self._ranks.met()
        except RuntimeError as error:
            status = "NRT_EXEC_COMPLETED_WITH_ERR" if self._ranks is None else "NRT_EXEC_HW_ERR_COLLECTIVES"
            raise NrtError(f"nrt_execute failed with status {status}: {error}") from error
        return arrays
