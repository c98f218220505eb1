"""Compile SmolLM2-135M, serve the bundle, ask it a question: `make demo`.

Each step is the command that a user would type; its output goes to a log under .demo/, and a step that fails shows
the end of its log and ends the demo with a non-zero exit code.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / ".demo"
RECIPE = "recipes/smollm2-135m.yaml"
CHECKPOINT = "models/SmolLM2-135M-Instruct"
STORE, REF = "./store", "smollm2/demo"
QUESTION = "What is the capital of France?"
START_TIMEOUT = 180.0

console = Console(highlight=False)


class StepFailed(Exception):
    def __init__(self, step: str, log: Path) -> None:
        super().__init__(step)
        self.step, self.log = step, log


def main() -> int:
    LOGS.mkdir(exist_ok=True)
    table = Table("step", "seconds", "", title="Where the time went", title_justify="left")
    table.columns[1].justify = "right"
    try:
        seconds, _ = run("checkpoint", [sys.executable, "recipes/checkpoints.py", CHECKPOINT])
        table.add_row("checkpoint", f"{seconds:.1f}", CHECKPOINT)

        command = ["compile", RECIPE, "--target", "cpu", "--store", STORE, "--ref", REF, "--json"]
        seconds, output = run("compile", neuron_aot(*command))
        made = json.loads(output.splitlines()[-1])
        table.add_row(
            "compile",
            f"{seconds:.1f}",
            f"{made['programs']} programs: {made['compiled']} compiled, {made['hits']} found",
        )

        with server() as (url, seconds):
            table.add_row("server start", f"{seconds:.1f}", "from launch to healthy, of which:")
            for name, value in start_phases(url):
                table.add_row(f"  {name}", f"{value:.2f}", "")
            answer = ask(url)
        table.add_row("first token", f"{answer['first']:.3f}", "from question to first token")
        table.add_row(
            "answer",
            f"{answer['rest']:.3f}",
            f"{answer['tokens']} tokens, {answer['rate']:.1f} tokens/s after the first",
        )
    except StepFailed as failure:
        console.print(f"[bold red]{failure.step} failed[/]; the end of {failure.log.relative_to(ROOT)}:")
        console.print(tail(failure.log), markup=False)
        return 1
    console.print(table)
    if "Paris" not in answer["text"]:
        console.print("[bold red]The answer does not name Paris.[/]")
        return 1
    return 0


def run(step: str, command: list[str]) -> tuple[float, str]:
    """Run one step to its end: (seconds, stdout)."""
    announce(command)
    log = LOGS / f"{step}.log"
    start = time.perf_counter()
    with log.open("w") as stderr:
        done = subprocess.run(command, check=False, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True)
    if done.returncode:
        with log.open("a") as more:
            more.write(done.stdout)
        raise StepFailed(step, log)
    return time.perf_counter() - start, done.stdout


@contextmanager
def server() -> Iterator[tuple[str, float]]:
    """The bundle's server on a free loopback port: (its URL, seconds until it was healthy). Stopped on leaving."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = neuron_aot("serve", f"{STORE}@{REF}", "--", "--host", "127.0.0.1", "--port", str(port))
    announce(command)
    log = LOGS / "serve.log"
    start = time.perf_counter()
    with log.open("w") as output:
        # A session of its own, so that stopping it reaches the engine's processes as well.
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
    try:
        while not is_healthy(url):
            if process.poll() is not None or time.perf_counter() - start > START_TIMEOUT:
                raise StepFailed("serve", log)
            time.sleep(0.05)
        yield url, time.perf_counter() - start
    finally:
        stop(process)


def stop(process: subprocess.Popen) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            continue


def ask(url: str) -> dict:
    """Ask the question, print the answer as it streams, and time it."""
    import httpx
    from openai import APIError, OpenAI

    console.print(f"\n[bold]{QUESTION}[/]")
    client = OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60, http_client=httpx.Client(trust_env=False)
    )
    text, first, tokens = "", None, 0
    try:
        model = client.models.list().data[0].id
        start = time.perf_counter()
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=64,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            piece = chunk.choices[0].delta.content if chunk.choices else None
            if piece:
                first = first or time.perf_counter()
                text += piece
                console.print(piece, end="", markup=False, soft_wrap=True)
            if chunk.usage:
                tokens = chunk.usage.completion_tokens
    except APIError as error:
        raise StepFailed(f"the question ({error})", LOGS / "serve.log") from error
    end = time.perf_counter()
    console.print("\n")
    if first is None:
        raise StepFailed("the question (no token came)", LOGS / "serve.log")
    rate = (tokens - 1) / (end - first) if end > first else 0.0
    return {"text": text, "first": first - start, "rest": end - first, "tokens": tokens, "rate": rate}


def start_phases(url: str) -> list[tuple[str, float]]:
    """What the server's own metrics say about its start."""
    names = {
        "vllm_neuron:program_load_time_seconds": "loading programs",
        "vllm_neuron:model_load_time_seconds": "loading weights",
    }
    totals = dict.fromkeys(names.values(), 0.0)
    for line in get(f"{url}/metrics").splitlines():
        label = names.get(line.partition("{")[0])
        if label:
            totals[label] += float(line.rpartition(" ")[2])
    return list(totals.items())


def neuron_aot(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "neuron-aot"), *arguments]


def announce(command: list[str]) -> None:
    name, *rest = command
    console.print(f"[bold green]$[/] {Path(name).name} {' '.join(rest)}", soft_wrap=True)


def is_healthy(url: str) -> bool:
    try:
        get(f"{url}/health")
    except OSError:
        return False
    return True


def get(url: str) -> str:
    # No proxy: the server is on this host, whatever the environment says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        return response.read().decode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


if __name__ == "__main__":
    sys.exit(main())
