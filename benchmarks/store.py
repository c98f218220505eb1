"""Push and pull of one bundle against s5cmd and boto3 on loopback, a second bundle that shares most, and verify.

    python -m benchmarks.store [--size 2GB] [--blobs 64] [--rounds 1] [--directory DIR]

Each side is a process of its own, the sides take turns, and for each the wall clock, its CPU seconds, its peak memory
and the CPU seconds of the S3 server are told, so that one can see what bounded it. s5cmd and boto3 move the same files
without digests and records; ours hashes all it moves.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from neuron_aot_runtime.contract.canonical import digest_bytes
from neuron_aot_runtime.contract.manifest import (
    Artifact,
    Bucket,
    KVCacheSpec,
    Manifest,
    ModelSpec,
    Program,
    Serving,
    TensorSpec,
    WeightEntry,
    WeightSource,
)
from neuron_aot_runtime.store import ProgramRecord, Provenance, RefRecord

from neuron_aot.store import Store, open_store
from tests import s3_server

ROOT = Path(__file__).resolve().parents[1]
_BUCKET = "bucket"

_BOTO3 = """
import sys, os, concurrent.futures as cf, boto3
from boto3.s3.transfer import TransferConfig
way, directory, prefix = sys.argv[1:]
config = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20, max_concurrency=8)
client = boto3.client("s3", config=__import__("botocore.config").config.Config(max_pool_connections=64))
if way == "push":
    files = [os.path.join(p, f) for p, _, fs in os.walk(directory) for f in fs]
    work = lambda f: client.upload_file(f, "bucket", prefix + os.path.relpath(f, directory), Config=config)
else:
    files = [o["Key"] for page in client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=prefix)
             for o in page.get("Contents", ())]
    def work(key):
        target = os.path.join(directory, key[len(prefix):])
        os.makedirs(os.path.dirname(target), exist_ok=True)
        client.download_file("bucket", key, target, Config=config)
with cf.ThreadPoolExecutor(8) as pool:
    list(pool.map(work, files))
"""

# The bound of whoever verifies sha256 digests: OpenSSL's, over the same files.
_SHA256 = """
import hashlib, pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*"):
    if path.is_file():
        with open(path, "rb") as file:
            hashlib.file_digest(file, "sha256")
"""

# What s5cmd brings, hashed as well, by a thread for each core: the same work as our pull.
_THEN_SHA256 = """
import concurrent.futures as cf, hashlib, os, pathlib, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
def work(path):
    with open(path, "rb", buffering=0) as file:
        hashlib.file_digest(file, "sha256")
with cf.ThreadPoolExecutor(os.cpu_count()) as pool:
    list(pool.map(work, [path for path in pathlib.Path(sys.argv[-1]).rglob("*") if path.is_file()]))
"""


def make_store(directory: Path, blobs: int, size: int, *, shared: Store | None = None, share: float = 0) -> Store:
    """A store of one bundle of random blobs; the first ``share`` of them are those of ``shared``."""
    store = open_store(str(directory))
    programs = []
    for number in range(blobs):
        if shared is not None and number < blobs * share:
            record = shared.program(f"{number:064x}")
            store.copy_blob(shared.backend, record.artifact.digest, record.artifact.size)
        else:
            with store.scratch() as scratch:
                (scratch / "blob").write_bytes(os.urandom(size // blobs))
                digest, nbytes = store.put_blob(scratch / "blob")
            key = digest_bytes(digest.encode()).removeprefix("sha256:") if shared else f"{number:064x}"
            record = _record(key, Artifact(format="bench", digest=digest, size=nbytes))
        store.put_program(record)
        programs.append(_program(number, record))
    store.set_ref("bench", RefRecord(bundle=store.publish(_manifest(programs))))
    return store


def _record(key: str, artifact: Artifact) -> ProgramRecord:
    made = Provenance(built_at="2026-01-01T00:00:00+00:00", lower_ms=0, generate_ms=0, peak_memory_mb=0, versions={})
    return ProgramRecord(program_key=key, artifact=artifact, target="cpu", code_generator={}, provenance=made)


def _program(number: int, record: ProgramRecord) -> Program:
    return Program(
        name=f"decode_b{number + 1}",
        phase="decode",
        bucket=Bucket(size=number + 1, context=128),
        program_key=record.program_key,
        artifact=record.artifact,
        inputs=(),
        outputs=(),
    )


def _manifest(programs: list[Program]) -> Manifest:
    weight = TensorSpec(name="w", role="param", shape=(1,), dtype="float32")
    return Manifest(
        target="cpu",
        world_size=1,
        model=ModelSpec(architecture="Bench", facts=(), vocab_size=1, hidden_size=1),
        serving=Serving(engine={}, neuron_config={}),
        kv_cache=KVCacheSpec(
            num_layers=1, num_blocks=2, block_size=16, num_kv_heads=1, head_size=1, dtype="float32"
        ),
        params=(weight,),
        states=(),
        weight_map=(WeightEntry(param="w", sources=(WeightSource(tensor="w", shape=(1,)),)),),
        programs=tuple(programs),
        requires={},
        toolchain={},
    )  # fmt: skip


class Bench:
    """The server, the environment of the sides, and what was measured."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = s3_server.start(directory / "server")
        self.environment = os.environ | self.server.environment() | {
            "S3_ENDPOINT_URL": self.server.endpoint,
            "NEURON_AOT_CACHE": str(directory / "cache"),
            "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(Path(sys.prefix) / "boto3")]),
            "PYTHONDONTWRITEBYTECODE": "",  # or each start of a Python side compiles its sources anew
        }  # fmt: skip

    def run(self, name: str, command: list[str], nbytes: int) -> dict:
        """Run one side; returns and tells what it took."""
        os.sync()  # nobody pays for what another has not yet written
        before, started = self._server_seconds(), time.monotonic()
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        told = process.stderr.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
        if status:
            raise SystemExit(f"{name} failed: {told[-2000:]}")
        measured = {
            "seconds": round(seconds, 2),
            "MB/s": round(nbytes / 1e6 / seconds),
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
            "server_cpu_seconds": round(self._server_seconds() - before, 2),
            "peak_memory_MB": usage.ru_maxrss // 1024,
        }
        print(f"{name:28} {json.dumps(measured)}", file=sys.stderr, flush=True)
        return measured

    def _server_seconds(self) -> float:
        fields = Path(f"/proc/{self.server.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def neuron_aot(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from neuron_aot.cli import main; main()", *arguments]


def measure(size: int, blobs: int, rounds: int, directory: Path) -> dict:
    """Everything, in turns."""
    source, second = directory / "source", directory / "second"
    store = make_store(source, blobs, size)
    make_store(second, blobs, size, shared=store, share=0.9)
    bench, results = Bench(directory), {}
    s5cmd = [shutil.which("s5cmd") or str(Path(sys.executable).parent / "s5cmd"), "--no-verify-ssl"]
    boto3 = [sys.executable, "-c", _BOTO3]
    try:
        # The first gigabytes make the server allocate its volumes, which is nobody's speed.
        bench.run("(warm-up, not counted)", [*boto3, "push", str(source / "blobs"), "warm/"], size)
        for number in range(rounds):
            here, at = directory / f"pulled{number}", f"s3://{_BUCKET}/"
            turns = {
                "push neuron-aot": neuron_aot("push", f"{source}@bench", f"{at}ours{number}"),
                "push s5cmd": [*s5cmd, "cp", f"{source}/blobs/", f"{at}s5{number}/"],
                "push boto3": [*boto3, "push", str(source / "blobs"), f"boto{number}/"],
                "pull neuron-aot": neuron_aot("pull", f"{at}ours{number}@bench", str(here / "ours")),
                "pull s5cmd": [*s5cmd, "cp", f"{at}s5{number}/*", f"{here}/s5/"],
                "pull s5cmd, then sha256": [
                    sys.executable,
                    "-c",
                    _THEN_SHA256,
                    *s5cmd,
                    "cp",
                    f"{at}s5{number}/*",
                    f"{here}/s5sha/",
                ],
                "pull boto3": [*boto3, "pull", str(here / "boto"), f"boto{number}/"],
            }
            for name, command in turns.items():
                results.setdefault(name, []).append(bench.run(name, command, size))
            shutil.rmtree(here)
        results["push again"] = bench.run(
            "push again", neuron_aot("push", f"{source}@bench", "s3://bucket/ours0"), size
        )
        results["push 90 % shared"] = bench.run(
            "push 90 % shared",
            neuron_aot("push", f"{second}@bench", "s3://bucket/ours0", "--ref", "second"),
            size // 10,
        )
        for name, command in {
            "verify --all, local": neuron_aot("verify", str(source), "--all"),
            "sha256 alone": [sys.executable, "-c", _SHA256, str(source / "blobs")],
        }.items():
            results[name] = bench.run(name, command, size)
            results[name]["GB per CPU second"] = round(size / 1e9 / results[name]["cpu_seconds"], 2)
        results["verify --all, S3"] = bench.run(
            "verify --all, S3", neuron_aot("verify", "s3://bucket/ours0", "--all"), size
        )
    finally:
        bench.server.stop()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--size", default="2GB", help="of the bundle, as in 256MB")
    parser.add_argument("--blobs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="where to work; needs ten times the size")
    options = parser.parse_args()
    number, unit = options.size[:-2], options.size[-2:]
    size = int(number) * {"MB": 10**6, "GB": 10**9}[unit]
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        results = measure(size, options.blobs, options.rounds, Path(directory))
    print(json.dumps({"size": size, "blobs": options.blobs, "load": os.getloadavg()[0], "results": results}, indent=1))


if __name__ == "__main__":
    main()
