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


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = s3_server.start(tmp_path_factory.mktemp("s3"))
    yield running
    running.stop()


def _run(
    command: list[str], environment: dict[str, str], code: int = 0, stdin: str = ""
) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "runtime"), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        command,
        input=stdin,
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == code, (ended.stdout[-3000:], ended.stderr[-6000:])
    return ended


def _generate(environment: dict[str, str], reference: str, model: Path, result: Path) -> list:
    job = json.dumps({"prompts": [[256, 72, 101, 108]], "max_tokens": 8, "rounds": ["alone"]})
    command = [sys.executable, str(Path(__file__).parent / "generate.py"), reference, str(model), str(result)]
    _run(command, environment, stdin=job)
    return json.loads(result.read_text())["rounds"]


@pytest.mark.timeout(900)
def test_serve_from_an_empty_cache_and_then_without_a_network(server, tiny, tmp_path):
    model = tiny("gqa", dtype="bfloat16")
    recipe = tmp_path / "recipe.yaml"
    engine = {"max_model_len": 128, "max_num_batched_tokens": 64, "max_num_seqs": 1, "num_gpu_blocks_override": 20}
    recipe.write_text(json.dumps({"model": str(model), "engine": engine}))
    reference = "s3://bucket/neuron@tiny/demo"
    settings = server.environment()
    cli = [sys.executable, "-c", "from neuron_aot.cli import main; main()"]
    compile_ = [*cli, "compile", str(recipe), "--store", "s3://bucket/neuron", "--ref", "tiny/demo"]
    _run(compile_, settings | {"NEURON_AOT_CACHE": str(tmp_path / "ci")})

    reader = server.environment(s3_server.READER) | {"NEURON_AOT_CACHE": str(tmp_path / "cache")}
    environment = reader | {"NEURON_COMPILED_ARTIFACTS": reference}
    first = _generate(environment, reference, model, tmp_path / "first.json")
    assert len(first[0][0]) == 8
    assert list((tmp_path / "cache" / "blobs").rglob("*"))

    server.stop()
    offline = environment | {"NEURON_AOT_OFFLINE": "1"}
    assert _generate(offline, reference, model, tmp_path / "again.json") == first
    off = _run([*cli, "show", reference], environment, code=23)
    assert "NEURON_AOT_OFFLINE=1" in off.stderr
