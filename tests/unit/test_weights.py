import json
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from neuron_aot_runtime.arrays import ALIGNMENT
from neuron_aot_runtime.checkpoint import open_checkpoint
from neuron_aot_runtime.contract.errors import CheckpointError
from neuron_aot_runtime.contract.manifest import (
    Artifact,
    Bucket,
    KVCacheSpec,
    Manifest,
    ModelSpec,
    Program,
    Serving,
    Shard,
    TensorSpec,
    WeightEntry,
    WeightSource,
)  # fmt: skip
from neuron_aot_runtime.weights import load_weights

NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64"}


def write(path, tensors):
    """A safetensors file, written from the format's description, so that reader and writer share nothing.

    Its tensors' data starts where a device can take it.
    """
    header, data = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    path.write_bytes(head(header) + data)


def head(header):
    """What precedes the data of a safetensors file."""
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def source(name, shape, **shard):
    return WeightSource(tensor=name, shape=shape, shard=Shard(**shard) if shard else None)


RANK = (TensorSpec(name="rank", role="input", shape=(1,), dtype="int32"),)


def manifest(entries, params, world_size=1):
    return Manifest(
        target="cpu",
        world_size=world_size,
        model=ModelSpec(architecture="X", facts=(), vocab_size=8, hidden_size=1),
        serving=Serving(engine={}, neuron_config={}),
        kv_cache=KVCacheSpec(num_layers=1, num_blocks=2, block_size=1, num_kv_heads=1, head_size=1, dtype="float32"),
        params=[TensorSpec(name=name, role="param", shape=shape, dtype=dtype) for name, shape, dtype in params],
        states=(),
        weight_map=entries,
        programs=[
            Program(name="p", phase="decode", bucket=Bucket(size=1, context=1), program_key="0" * 64,
                    artifact=Artifact(format="none", digest="sha256:" + "0" * 64, size=0), inputs=RANK if world_size > 1 else (), outputs=())
        ],
        requires={},
        toolchain={},
    )  # fmt: skip


def load(made, directory, rank=0, **kwargs):
    arrays = {}
    report = load_weights(
        made, directory, rank=rank, put=lambda spec, array: arrays.update({spec.name: array}), **kwargs
    )
    return arrays, report


@pytest.fixture
def weights(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {
        "q": rng.standard_normal((8, 4)).astype(ml_dtypes.bfloat16),
        "k": rng.standard_normal((2, 4)).astype(ml_dtypes.bfloat16),
        "norm": rng.standard_normal((4,)).astype(np.float32),
    }
    write(tmp_path / "model.safetensors", tensors)
    return tmp_path, tensors


def test_every_operation_of_the_map(weights):
    directory, tensors = weights
    made = manifest(
        [
            WeightEntry(param="plain", sources=[source("q", (8, 4))]),
            WeightEntry(param="joined", sources=[source("q", (8, 4)), source("k", (2, 4))], axis=0, transpose=False),
            WeightEntry(param="turned", sources=[source("q", (8, 4)), source("k", (2, 4))], axis=1, transpose=True),
            WeightEntry(param="cast", sources=[source("q", (8, 4))]),
            WeightEntry(param="narrow", sources=[source("norm", (4,))]),
        ],
        [
            ("plain", (8, 4), "bfloat16"),
            ("joined", (10, 4), "bfloat16"),
            ("turned", (4, 10), "bfloat16"),
            ("cast", (8, 4), "float32"),
            ("narrow", (4,), "bfloat16"),
        ],
    )
    arrays, report = load(made, directory)
    joined = np.concatenate([tensors["q"], tensors["k"]])
    np.testing.assert_array_equal(arrays["plain"], tensors["q"])
    np.testing.assert_array_equal(arrays["joined"], joined)
    np.testing.assert_array_equal(arrays["turned"], joined.T)
    np.testing.assert_array_equal(arrays["cast"], tensors["q"].astype(np.float32))
    np.testing.assert_array_equal(arrays["narrow"], tensors["norm"].astype(ml_dtypes.bfloat16))
    assert [str(array.dtype) for array in arrays.values()] == ["bfloat16"] * 3 + ["float32", "bfloat16"]
    assert report.nbytes == sum(array.nbytes for array in arrays.values())
    assert report.copied == report.nbytes - arrays["plain"].nbytes
    for name in ("joined", "turned", "cast", "narrow"):
        assert arrays[name].ctypes.data % ALIGNMENT == 0


def test_each_rank_gets_its_slice(tmp_path):
    q, norm = np.arange(64, dtype=np.float32).reshape(8, 8), np.arange(16, dtype=np.float32)
    write(tmp_path / "model.safetensors", {"q": q, "norm": norm})
    made = manifest(
        [
            WeightEntry(param="rows", sources=[source("q", (8, 8), axis=0, size=4)]),
            WeightEntry(param="columns", sources=[source("q", (8, 8), axis=1, size=4)]),
            WeightEntry(param="norm", sources=[source("norm", (16,))]),
        ],
        [("rows", (4, 8), "float32"), ("columns", (8, 4), "float32"), ("norm", (16,), "float32")],
        world_size=2,
    )
    for rank in (0, 1):
        arrays, report = load(made, tmp_path, rank)
        np.testing.assert_array_equal(arrays["rows"], q[4 * rank : 4 * rank + 4])
        np.testing.assert_array_equal(arrays["columns"], q[:, 4 * rank : 4 * rank + 4])
        np.testing.assert_array_equal(arrays["norm"], norm)
        assert report.copied == arrays["columns"].nbytes, "only the strided slice is copied"


def test_what_a_rank_lacks_is_zeros_and_ranks_share_what_they_are_told(weights):
    directory, tensors = weights
    made = manifest(
        [
            WeightEntry(param="rows", sources=[source("q", (8, 4), axis=0, size=3)]),
            WeightEntry(param="columns", sources=[source("q", (8, 4), axis=1, size=3)]),
            WeightEntry(
                param="joined",
                sources=[
                    source("q", (8, 4), axis=0, size=4, ranges=((0, 4), (4, 7), (7, 8))),
                    source("k", (2, 4), axis=0, size=1, ranges=((0, 1), (0, 1), (1, 2))),
                ],
            ),
            WeightEntry(
                param="turned",
                sources=[source("q", (8, 4), axis=1, size=2), source("k", (2, 4), axis=1, size=2)],
                axis=1,
                transpose=True,
            ),
        ],
        [("rows", (3, 4), "bfloat16"), ("columns", (8, 3), "bfloat16"), ("joined", (5, 4), "bfloat16"),
         ("turned", (2, 10), "bfloat16")],
        world_size=3,
    )  # fmt: skip
    q, k = tensors["q"], tensors["k"]

    def padded(array, *shape):
        return np.pad(array, [(0, size - length) for size, length in zip(shape, array.shape, strict=True)])

    wanted = {
        "rows": [q[0:3], q[3:6], padded(q[6:8], 3, 4)],
        "columns": [q[:, 0:3], padded(q[:, 3:4], 8, 3), np.zeros((8, 3), q.dtype)],
        "joined": [
            np.concatenate([padded(q[start:stop], 4, 4), k[head : head + 1]])
            for start, stop, head in ((0, 4, 0), (4, 7, 0), (7, 8, 1))
        ],
        "turned": [
            np.concatenate([q[:, start : start + 2].T, k[:, start : start + 2].T], 1)
            if start < 4
            else np.zeros((2, 10))
            for start in (0, 2, 4)
        ],
    }
    for rank in range(3):
        arrays, _ = load(made, directory, rank)
        for name, parts in wanted.items():
            np.testing.assert_array_equal(arrays[name], parts[rank].astype(q.dtype), err_msg=f"{name} of rank {rank}")


@pytest.mark.parametrize(
    ("shard", "named"),
    [
        ({"axis": 2, "size": 4}, "axis 2 of a tensor of 2 axes"),
        ({"axis": 0, "size": 3}, "no rank takes what follows 6 of 8"),
        ({"axis": 0, "size": 4, "ranges": ((0, 4), (5, 8))}, "no rank takes what follows 4 of 8"),
        ({"axis": 0, "size": 4, "ranges": ((0, 4), (4, 9))}, r"the range \[4, 9\)"),
        ({"axis": 0, "size": 3, "ranges": ((0, 3), (3, 8))}, r"the range \[3, 8\) for a size of 3"),
        ({"axis": 0, "size": 8, "ranges": ((0, 8),)}, "1 ranges for 2 ranks"),
    ],
)
def test_a_shard_that_does_not_divide_its_tensor_is_no_manifest(shard, named):
    entry = WeightEntry(param="q", sources=[source("q", (8, 4), **shard)])
    with pytest.raises(ValueError, match=named):
        manifest([entry], [("q", (4, 4), "bfloat16")], world_size=2)


def test_a_bundle_of_several_ranks_has_their_rank_as_its_last_input():
    made = manifest([], [], world_size=2)
    bare = made.model_dump() | {"world_size": 1}
    with pytest.raises(ValueError, match="its last input is rank in a bundle of 1 ranks"):
        Manifest.model_validate(bare)


def test_everything_that_does_not_fit_is_named_and_nothing_is_read(weights):
    directory, _ = weights
    made = manifest(
        [
            WeightEntry(param="a", sources=[source("q", (8, 4))]),
            WeightEntry(param="b", sources=[source("v", (2, 4))]),
            WeightEntry(param="c", sources=[source("k", (3, 4)), source("o", (4, 4))]),
        ],
        [("a", (8, 4), "bfloat16"), ("b", (2, 4), "bfloat16"), ("c", (7, 4), "bfloat16")],
    )
    put = []
    with pytest.raises(CheckpointError) as raised:
        load_weights(made, directory, put=lambda spec, array: put.append(spec))
    assert not put
    assert raised.value.details == (
        "v: missing (wanted [2, 4], for b)",
        "k: wanted [3, 4], found [2, 4]",
        "o: missing (wanted [4, 4], for c)",
    )


def test_progress_counts_bytes(weights):
    directory, _ = weights
    made = manifest(
        [WeightEntry(param="q", sources=[source("q", (8, 4))]), WeightEntry(param="k", sources=[source("k", (2, 4))])],
        [("q", (8, 4), "bfloat16"), ("k", (2, 4), "bfloat16")],
    )
    seen = []
    load(made, directory, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(64, 80), (80, 80)]


def test_an_index_leads_to_its_files(tmp_path):
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.float32)
    write(tmp_path / "model-1.safetensors", {"a": first})
    write(tmp_path / "model-2.safetensors", {"b": second})
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = open_checkpoint(tmp_path)
    np.testing.assert_array_equal(checkpoint.array("a"), first)
    np.testing.assert_array_equal(checkpoint.array("b"), second)


def test_an_index_cannot_leave_its_directory(tmp_path):
    inside = tmp_path / "checkpoint"
    inside.mkdir()
    write(tmp_path / "model.safetensors", {"a": np.zeros(1, np.float32)})
    index = {"weight_map": {"a": "../model.safetensors", "b": "absent.safetensors"}}
    (inside / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError) as raised:
        open_checkpoint(inside)
    assert raised.value.details == ("absent.safetensors: missing", "'../model.safetensors': not a plain file name")


@pytest.mark.parametrize("length", [0, 7, 20, -4])
def test_a_truncated_file_is_refused(weights, length):
    directory, _ = weights
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        open_checkpoint(directory)


def test_a_git_lfs_pointer_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        open_checkpoint(tmp_path)


def test_a_directory_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError) as raised:
        open_checkpoint(tmp_path)
    assert raised.value.found == "config.json"


def test_what_the_safetensors_package_writes_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    tensor = torch.randn(5, 7, dtype=torch.bfloat16)
    save_file({"x": tensor, "y": torch.arange(3)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.array("x").view(np.uint16).tobytes() == tensor.view(torch.uint16).numpy().tobytes()
    assert checkpoint.array("y").tolist() == [0, 1, 2]


MEASURE = """
import sys
from pathlib import Path
from neuron_aot_runtime.contract.manifest import Manifest
from neuron_aot_runtime.weights import load_weights

def peak():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

made, kept = Manifest.model_validate_json(Path(sys.argv[1], "manifest.json").read_bytes()), []
before = peak()
load_weights(made, Path(sys.argv[1]), rank=3, put=lambda spec, array: kept.append(array))
print(peak() - before, sum(array.nbytes for array in kept))
"""


def test_a_rank_needs_memory_for_its_shard_and_not_for_the_checkpoint(tmp_path):
    side, ranks, count = 4096, 8, 6  # 64 MiB a tensor, 8 of them a rank's
    part, size, header, entries, params = side // ranks, side * side * 4, {}, [], []
    for index in range(count):
        name, axis = f"t{index}", index % 2
        header[name] = {"dtype": "F32", "shape": [side, side], "data_offsets": [index * size, (index + 1) * size]}
        entries.append(WeightEntry(param=name, sources=[source(name, (side, side), axis=axis, size=part)]))
        params.append((name, (side, part) if axis else (part, side), "float32"))
    with open(tmp_path / "model.safetensors", "wb") as file:
        start = file.write(head(header))
        file.truncate(start + count * size)  # zeros that take no disk
    (tmp_path / "manifest.json").write_bytes(manifest(entries, params, world_size=ranks).to_json())
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    grown, shard = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert shard == count * side * part * 4
    assert grown < shard + 96 * 2**20, f"{grown / 2**20:.0f} MiB for a shard of {shard / 2**20:.0f}"
