"""A server started from s3://…@ref on an empty cache, and again from the warm cache with the network off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import s3_server

_ROOT = Path(__file__).resolve().parents[2]

_GENERATE = """
import json, sys
if __name__ == "__main__":
    from neuron_aot_runtime.vllm import engine_args
    from vllm import LLM, SamplingParams
    llm = LLM(sys.argv[1], **engine_args(sys.argv[2]))
    out = llm.generate({"prompt_token_ids": [256, 72, 101, 108]}, SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    print(json.dumps(list(out[0].outputs[0].token_ids)))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = s3_server.start(tmp_path_factory.mktemp("s3"))
    yield running
    running.stop()


def _run(command: list[str], environment: dict[str, str], code: int = 0) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "runtime"), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path} | environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == code, (ended.stdout[-3000:], ended.stderr[-6000:])
    return ended


@pytest.mark.timeout(900)
def test_serve_from_an_empty_cache_and_then_without_a_network(server, tiny, tmp_path):
    model = tiny("gqa", dtype="bfloat16")
    recipe = tmp_path / "recipe.yaml"
    engine = {"max_model_len": 128, "max_num_batched_tokens": 64, "max_num_seqs": 1, "num_gpu_blocks_override": 20}
    recipe.write_text(json.dumps({"model": str(model), "target": "cpu", "engine": engine}))
    reference = "s3://bucket/neuron@tiny/demo"
    settings = server.environment()
    cli = [sys.executable, "-c", "from neuron_aot.cli import main; main()"]
    compile_ = [*cli, "compile", str(recipe), "--store", "s3://bucket/neuron", "--ref", "tiny/demo"]
    _run(compile_, settings | {"NEURON_AOT_CACHE": str(tmp_path / "ci")})

    reader = server.environment(s3_server.READER) | {"NEURON_AOT_CACHE": str(tmp_path / "cache")}
    serve = [sys.executable, "-c", _GENERATE, str(model), reference]
    script = tmp_path / "generate.py"
    script.write_text(_GENERATE)
    serve = [sys.executable, str(script), str(model), reference]
    environment = reader | {"NEURON_COMPILED_ARTIFACTS": reference}
    first = _run(serve, environment).stdout.splitlines()[-1]
    assert len(json.loads(first)) == 8
    assert list((tmp_path / "cache" / "blobs").rglob("*"))

    server.stop()
    again = _run(serve, environment | {"NEURON_AOT_OFFLINE": "1"}).stdout.splitlines()[-1]
    assert again == first
    off = _run([*cli, "show", reference], environment, code=23)
    assert "NEURON_AOT_OFFLINE=1" in off.stderr
