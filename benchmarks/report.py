"""results.json as a table."""

from __future__ import annotations


def markdown(results: dict) -> str:
    """The table of RESULTS.md; parts that were not measured are left out."""
    host = results["host"]
    lines = [
        "# Benchmarks",
        "",
        f"SmolLM2-135M in bfloat16 on {host['cpu']}, {host['cores']} cores; {host['versions']}. Both sides of a row were",
        "measured in one run, in turns; launch and compile times are medians, steps are minima (noise only adds time).",
        "`make bench` measures again. What the sides are: `benchmarks/sides.py`.",
        "",
        "| what | ours | compared with | ratio | wanted |",
        "|---|---|---|---|---|",
    ]
    parts = (
        ("launch", _launch),
        ("compile", _compile),
        ("throughput", _throughput),
        ("steps", _steps),
        ("70b", _lowering),
    )
    for part, rows in parts:
        if part in results:
            lines += rows(results[part])
    noise = max((results[part]["noise"] for part in ("launch", "throughput", "steps") if part in results), default=0.0)
    lines += ["", f"Other processes took at most {noise:.0%} of the CPU in the rounds that count."]
    return "\n".join(lines) + "\n"


def _launch(launch: dict) -> list[str]:
    rows = []
    first = {side: taken["first_token"]["median"] for side, taken in launch["sides"].items()}
    notes = {
        "stock": ("stock vLLM, warm cache", "at most 0.25"),
        "stock-default": ("stock vLLM as it comes (its saved functions fail to load)", ""),
        "stock-eager": ("stock vLLM without torch.compile", ""),
        "floor": ("the floor: a worker that does nothing", "near 1"),
    }
    for side, (text, wanted) in notes.items():
        if side in first:
            rows.append(_row("launch to first token", first["ours"], text, first[side], wanted, "s"))
    return rows


def _compile(taken: dict) -> list[str]:
    total = taken["program"]["total"]["median"]
    warm_up = taken["stock_warm_up"]
    return [
        _row("compile one 30-layer program", total, "stock warm-up, cold cache", warm_up["cold"], "at most 0.2", "s"),
        _row("the same", total, "stock warm-up, warm cache", warm_up["warm"], "", "s"),
        f"| compile again, nothing to do | {taken['repeated']['median']:.2f} s | | | under 2 s |",
    ]


def _throughput(taken: dict) -> list[str]:
    wall, cores = taken["all_cores"]["median"], taken["cores"]
    what = f"compile {taken['programs']} programs into an empty store, {cores} workers"
    return [
        _row(what, wall, f"their plain sum over {cores} cores", taken["parts"]["median"] / cores, "near 1", "s"),
        _row("the same", wall, "one worker", taken["one_worker"]["median"], f"near {1 / cores:.2g}", "s"),
        f"| the same: share of the time that workers lowered or generated | {taken['busy']['median']:.0%} | | | near 1 |",
    ]


def _steps(steps: dict) -> list[str]:
    rows = []
    for name, taken in steps["cases"].items():
        wanted = "" if name == "decode, batch 8" else "at most 1.3"
        rows.append(_row(name, taken["ours"]["min"] * 1e3, "stock vLLM", taken["stock"]["min"] * 1e3, wanted, "ms"))
    host = steps["cases"]["decode, batch 8"]["ours_host"]
    rows.append(
        f"| host time of a decode step, batch 8 | {host['median'] * 1e3:.2f} ms (median), "
        f"{host['min'] * 1e3:.2f} ms (least) | | | under 1 ms |"
    )
    return rows


def _lowering(taken: dict) -> list[str]:
    cost = f"{taken['lower']:.1f} s, {taken['peak_mb'] / 1024:.2f} GB"
    return [f"| lower a Llama-3.3-70B-shaped decode program | {cost} | | | under 4 GB |"]


def _row(what: str, ours: float, text: str, other: float, wanted: str, unit: str) -> str:
    return f"| {what} | {ours:.2f} {unit} | {text}: {other:.2f} {unit} | {ours / other:.2f} | {wanted} |"
