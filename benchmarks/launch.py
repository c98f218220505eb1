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
    times: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds + 1):
        for side in ROUND + (("stock-default",) if number < 2 else ()):
            healthy, first = start_once(side)
            say(f"launch {side}: healthy {healthy:.2f} s, first token {first:.2f} s{'' if number else ' (warm-up)'}")
            if number:
                side_times = times.setdefault(side, {"healthy": [], "first_token": []})
                side_times["healthy"].append(healthy)
                side_times["first_token"].append(first)
    return {side: {what: summary(values) for what, values in taken.items()} for side, taken in times.items()}


def start_once(side: str) -> tuple[float, float]:
    """Seconds from launch until /health answers, and until the first token of a chat arrives."""
    port = _free_port()
    log = CACHE / f"launch-{side}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            server_command(side, port), env=environment(side), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            _wait_until_healthy(port, process, start, log)
            healthy = time.perf_counter() - start
            _first_token(port)
            return healthy, time.perf_counter() - start
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
