"""What a user with a Neuron device runs first (`make test-device`): the real compiler, runtime and device, on a tiny model.

Skipped without nrtpy, neuronx-cc and /dev/neuron0. NEURON_AOT_TEST_DEVICE=1 runs it regardless, which is how it is
tried on the simulator. NEURON_PLATFORM_TARGET_OVERRIDE names the device's target (trn2 unless said).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from neuron_aot_runtime.device import open_device
from neuron_aot_runtime.store import open_bundle
from neuron_aot_runtime.weights import load_weights
from toy import decode_inputs, prefill_inputs

TARGET = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or "trn2"
ENGINE = {
    "max_model_len": 256, "max_num_batched_tokens": 32, "max_num_seqs": 2, "block_size": 16, "num_gpu_blocks_override": 40,
}  # fmt: skip
# Relative to the largest logit. The device rounds each layer's result in another order than the cpu.
TOLERANCE = {"float32": 1e-3, "bfloat16": 6e-2}


def _missing() -> str | None:
    if os.environ.get("NEURON_AOT_TEST_DEVICE") == "1":
        return None
    if importlib.util.find_spec("nrtpy") is None:
        return "nrtpy is not installed"
    if shutil.which("neuronx-cc") is None:
        return "neuronx-cc is not on the PATH"
    return None if Path("/dev/neuron0").exists() else "there is no /dev/neuron0"


pytestmark = [pytest.mark.device, pytest.mark.skipif(_missing() is not None, reason=str(_missing()))]


@pytest.fixture(scope="module", params=list(TOLERANCE))
def compiled(request, tiny, tmp_path_factory):
    """(dtype, model, bundle on the device's target, the same on cpu)."""
    folder, model = tmp_path_factory.mktemp("device"), tiny("gqa", dtype=request.param)
    document = {
        "model": str(model), "engine": ENGINE | {"dtype": request.param},
        "neuron_config": {"num_batched_tokens_buckets": [32], "num_seqs_buckets": [2]},
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(document))
    bundles = []
    for target in (TARGET, "cpu"):
        command = [
            sys.executable,
            "-c",
            "from neuron_aot.cli import main; main()",
            "compile",
            str(folder / "recipe.yaml"),
        ]
        subprocess.run([*command, "--target", target, "--store", str(folder / "store"), "--ref", target], check=True)
        bundles.append(open_bundle(f"{folder / 'store'}@{target}"))
    return request.param, model, *bundles


def steps(bundle, model):
    """The logits of a prompt, a continuation and decode steps of two sequences, over one KV cache."""
    manifest = bundle.manifest
    device = open_device(manifest.target)
    device.check(manifest.requires)
    try:
        for program in manifest.programs:
            device.load(manifest, program, bundle.artifact_path(program))
        load_weights(manifest, model, put=device.put_param)
        device.allocate_states(manifest.states)
        first = {"size": 32, "context": 32, "block_size": 16}
        long = {"size": 32, "context": 256, "block_size": 16}
        run = [
            ("prefill_s32_c32", prefill_inputs(list(range(1, 30)), computed=0, blocks=[4, 9], **first)),
            ("prefill_s32_c256", prefill_inputs([7] * 10, computed=29, blocks=[4, 9, 2], **long)),
            ("prefill_s32_c32", prefill_inputs([5, 6], computed=0, blocks=[11], **first)),
        ]
        for step in range(8):
            rows = [(3, 39 + step, [4, 9, 2]), (8, 2 + step, [11])]
            run.append(("decode_b2_c256", decode_inputs(rows, size=2, context=256, block_size=16)))
        return [device.execute(name, inputs)["logits"] for name, inputs in run]
    finally:
        device.close()


def test_the_device_computes_what_the_cpu_computes(compiled):
    dtype, model, bundle, cpu = compiled
    for number, (found, wanted) in enumerate(zip(steps(bundle, model), steps(cpu, model), strict=True)):
        error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        assert error <= TOLERANCE[dtype], f"step {number}: {error:.1e}"


def test_a_second_run_gives_the_same_bits(compiled):
    _, model, bundle, _ = compiled
    first, again = steps(bundle, model), steps(bundle, model)
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
