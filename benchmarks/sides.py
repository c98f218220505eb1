"""The engines that are compared, as environments and commands.

    ours           vLLM with our plugin, on the bundle; STORE@REF: the same on another bundle
    stock          vLLM's own CPU platform with torch.compile, and a warm cache that works: vLLM 0.32 cannot load the
                   functions that its default, VLLM_USE_AOT_COMPILE, has saved on CPU ("Compiling model again due to
                   a load failure"), so this turns it off and lets inductor's cache serve. The fair comparison.
    stock-default  the same as it comes: compiles again at each start
    stock-eager    the same without torch.compile: starts sooner, decodes slower
    floor          vLLM with a worker that does nothing (benchmarks/floor)

All get the same engine arguments, taken from the bundle.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "benchmarks" / ".cache"
RECIPE = ROOT / "recipes" / "smollm2-135m.yaml"
CHECKPOINT = ROOT / "models" / "SmolLM2-135M-Instruct"
REFERENCE = f"{ROOT / 'store'}@smollm2/demo"
NEURON_AOT = str(Path(sys.executable).parent / "neuron-aot")

STOCK_SIDES = ("stock", "stock-default", "stock-eager")
# Engine arguments that vLLM's own platform knows. Its cache is sized by VLLM_CPU_KVCACHE_SPACE.
_SHARED = ("dtype", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size", "enable_prefix_caching")


def bundle_of(side: str) -> str | None:
    """The bundle that a side serves, None for those without our plugin."""
    return REFERENCE if side == "ours" else side if "@" in side else None


def environment(side: str) -> dict[str, str]:
    """A whole environment for one side; nothing of the caller's that could favour one of them stays."""
    made = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VLLM_", "NEURON_", "TORCHINDUCTOR_", "OMP_", "XLA_"))
    }
    made |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
    made["VLLM_CACHE_ROOT"] = str(CACHE / side.rpartition("@")[2] / "vllm")
    if bundle := bundle_of(side):
        return made | {"NEURON_COMPILED_ARTIFACTS": bundle}
    if side == "floor":
        path = os.pathsep.join(filter(None, [str(ROOT / "benchmarks" / "floor"), made.get("PYTHONPATH")]))
        return made | {"PYTHONPATH": path, "VLLM_PLUGINS": "neuron_aot_floor"}
    made |= {
        "VLLM_PLUGINS": "",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(CACHE / side / "inductor"),
    }
    if side == "stock":
        made["VLLM_USE_AOT_COMPILE"] = "0"
    return made


def engine_arguments(side: str) -> dict:
    """Keyword arguments of vLLM's LLM for one side."""
    from neuron_aot_runtime.vllm import engine_args

    arguments = engine_args(bundle_of(side) or REFERENCE)
    if bundle_of(side) is None:
        arguments = {name: arguments[name] for name in _SHARED if name in arguments}
    if side == "stock-eager":
        arguments["enforce_eager"] = True
    return {"model": str(CHECKPOINT), "seed": 0, **arguments}


def server_command(side: str, port: int) -> list[str]:
    """The OpenAI-compatible server of one side."""
    network = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model"]
    if side == "ours":
        return [NEURON_AOT, "serve", REFERENCE, "--model", str(CHECKPOINT), "--", *network]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in engine_arguments(side).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            command += [f"--{flag}", str(value)]
    return [*command, *network]


def build_bundle() -> dict:
    """Compile the recipe into the store: the last line of ``neuron-aot compile --json``."""
    command = [NEURON_AOT, "compile", str(RECIPE), "--target", "cpu", "--store", str(ROOT / "store"),
               "--ref", "smollm2/demo", "--json"]  # fmt: skip
    done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(done.stdout.splitlines()[-1])
