"""From launch to first token of the OpenAI-compatible server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

from .noise import Watch, quiet_rounds
from .sides import CACHE, environment, server_command
from .statistics import summary

ROUND = ("ours", "stock", "stock-eager", "floor")
TIMEOUT = 400.0
QUESTION = {
    "model": "model",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 8,
    "stream": True,
}


def measure(rounds: int, say) -> dict:
    """Interleaved rounds after one unmeasured start of each side; stock-default, which is slow, only once."""

    def one_round(sides: tuple[str, ...] = ROUND) -> tuple[dict, float]:
        taken = {}
        for side in sides:
            taken[side] = start_once(side)
            say(
                f"launch {side}: healthy {taken[side]['healthy']:.2f} s, first token {taken[side]['first_token']:.2f} s"
            )
        return taken, max(start["others"] for start in taken.values())

    one_round((*ROUND, "stock-default"))  # caches fill
    kept, noise = quiet_rounds(rounds, one_round, say)
    slow, _ = one_round(("stock-default",))
    sides = {side: [taken[side] for taken in kept] for side in ROUND} | {"stock-default": [slow["stock-default"]]}
    return {
        "noise": noise,
        "sides": {
            side: {what: summary([start[what] for start in starts]) for what in ("healthy", "first_token")}
            for side, starts in sides.items()
        },
    }


def start_once(side: str) -> dict[str, float]:
    """Seconds from launch until /health answers, and until the first token of a chat arrives; others' CPU share."""
    port = _free_port()
    log = CACHE / f"launch-{side}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            server_command(side, port), env=environment(side), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        watch = Watch(process.pid)
        try:
            _wait_until_healthy(port, process, start, log)
            healthy = time.perf_counter() - start
            _first_token(port)
            first_token = time.perf_counter() - start
            return {"healthy": healthy, "first_token": first_token, "others": watch.others()}
        finally:
            _stop(process)


def _wait_until_healthy(port: int, process: subprocess.Popen, start: float, log: Path) -> None:
    while True:
        try:
            with _open(f"http://127.0.0.1:{port}/health"):
                return
        except OSError:
            if process.poll() is not None or time.perf_counter() - start > TIMEOUT:
                raise RuntimeError(f"the server did not start; see {log}") from None
        time.sleep(0.02)


def _first_token(port: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(QUESTION).encode(),
        {"Content-Type": "application/json"},
    )
    with _open(request) as response:
        for line in response:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                return
    raise RuntimeError("the server answered without a token")


def _open(request):
    # Without a proxy: the server is on this host.
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120)


def _stop(process: subprocess.Popen) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(timeout=20)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
