"""Compiling bundles and running vLLM on them, each in processes of their own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml
from neuron_aot_runtime.contract.manifest import Program
from neuron_aot_runtime.store import open_bundle

#: Of a tiny model: one prefill bucket, one decode bucket, prompts above 32 tokens in segments.
TINY_ENGINE = {
    "dtype": "float32", "max_model_len": 256, "max_num_batched_tokens": 32, "max_num_seqs": 2, "block_size": 16,
    "num_gpu_blocks_override": 40,
}  # fmt: skip
TINY_NEURON = {"num_batched_tokens_buckets": [32], "num_seqs_buckets": [2]}


def tiny_prompts(*lengths: int) -> list[list[int]]:
    """Prompts of random tokens below 256, always the same."""
    rng = random.Random(5)
    return [[rng.randrange(256) for _ in range(length)] for length in lengths]


def tokens_together(reference: str, model: Path | str, result: Path, prompts: list, count: int) -> list[list[int]]:
    """``count`` new tokens of each prompt, all served at once."""
    return generate(reference, model, result, prompts=prompts, max_tokens=count, rounds=["together"])["rounds"][0]


def compile_bundle(
    model: Path | str, directory: Path, ref: str, engine: dict, neuron_config: dict, *, target="cpu"
) -> str:
    """Compile a recipe for ``target`` into ``directory/store``; the bundle's reference."""
    recipe = directory / f"{ref}.yaml"
    content = {"model": str(model), "engine": engine, "neuron_config": neuron_config, "compile": {"target": target}}
    recipe.write_text(yaml.safe_dump(content))
    command = [sys.executable, "-c", "from neuron_aot.cli import main; main()", "compile", str(recipe)]
    subprocess.run([*command, "--store", str(directory / "store"), "--ref", ref], check=True)
    return f"{directory / 'store'}@{ref}"


def generate(reference: str, model: Path | str, result: Path, *, timeout: int = 900, **job) -> dict:
    """Run e2e/generate.py, which says what ``job`` and its result hold."""
    command = [sys.executable, str(Path(__file__).parent / "e2e" / "generate.py"), reference, str(model), str(result)]
    done = subprocess.run(command, input=json.dumps(job), text=True, capture_output=True, timeout=timeout, check=False)
    assert done.returncode == 0, _first_errors(done.stdout + done.stderr)
    return json.loads(result.read_text())


def _first_errors(log: str) -> str:
    """The lines that say what went wrong, first: vLLM ends in tracebacks of every process that heard of it."""
    lines = log.splitlines()
    told = [line for line in lines if "ERROR" in line and "^^^" not in line and ", line " not in line]
    return "\n".join([*told[:60], "…", *lines[-40:]])


def tree(reference: str) -> dict[str, str]:
    """Every file of a store with its digest, but for the locks of writers."""
    root = Path(reference.rpartition("@")[0])
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] != "locks"
    }


def bucket_sweep(reference: str) -> list[list[int]]:
    """Batches of prompt lengths that make the scheduler use every program of a bundle."""
    manifest = open_bundle(reference).manifest
    longest = manifest.serving.engine["max_num_batched_tokens"]
    return [_batch(program, manifest.programs, longest) for program in manifest.programs]


def _batch(program: Program, programs: tuple[Program, ...], longest: int) -> list[int]:
    bucket = program.bucket
    if program.phase == "decode":
        smaller = [
            item.bucket.context for item in programs if item.phase == "decode" and item.bucket.context < bucket.context
        ]
        return [max(smaller, default=0) + 2] * bucket.size
    if bucket.context <= bucket.size:
        return [bucket.size]
    smaller = [item.bucket.context for item in programs if item.phase == "prefill" and item.bucket.size == bucket.size]
    prior = max(context for context in smaller if context < bucket.context)
    return [-(-prior // longest) * longest + bucket.size // 2 + 1]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_server(reference, model, *arguments, port, log):
    """vLLM's OpenAI-compatible server; its output goes to the file ``log``."""
    environment = os.environ | {"NEURON_COMPILED_ARTIFACTS": reference}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)]
    with open(log, "w") as output:
        return subprocess.Popen([*command, *arguments], env=environment, stdout=output, stderr=subprocess.STDOUT)


class Server:
    """A client of the server in ``process``, whose model is called tiny."""

    def __init__(self, port, process):
        self.url, self.process = f"http://127.0.0.1:{port}", process

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def post(self, path, **body):
        """(status, decoded JSON)."""
        request = urllib.request.Request(
            self.url + path, json.dumps({"model": "tiny", **body}).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def stream(self, path, **body):
        request = urllib.request.Request(
            self.url + path,
            json.dumps({"model": "tiny", "stream": True, **body}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            lines = [line.decode().strip() for line in answer]
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@contextlib.contextmanager
def running(reference, model, *arguments, log):
    """A Server that answers; ended at the end, if it has not ended by itself."""
    port = free_port()
    process = start_server(reference, model, "--served-model-name", "tiny", *arguments, port=port, log=log)
    server = Server(port, process)
    try:
        deadline = time.monotonic() + 300
        while True:
            assert process.poll() is None, log.read_text()[-5000:]
            assert time.monotonic() < deadline, log.read_text()[-5000:]
            with contextlib.suppress(OSError):
                server.get("/health")
                break
            time.sleep(0.1)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(90)
