"""What compiling costs: one 30-layer program, a repeated compile, and lowering a 70B-shaped program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .sides import RECIPE, ROOT, build_bundle
from .statistics import summary
from .steps import stock_warm_up

# Llama-3.3-70B-Instruct's shape.
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
RECIPE_70B = """
model: {model}
engine: {{dtype: bfloat16, max_model_len: 8192, max_num_batched_tokens: 512, max_num_seqs: 4, block_size: 32}}
compile: {{target: cpu}}
"""


def measure(rounds: int, say) -> dict:
    """Ours against stock vLLM's warm-up with cold and with warm caches."""
    stock = {"cold": stock_warm_up(cold=True), "warm": stock_warm_up(cold=False)}
    say(f"stock torch.compile warm-up: {stock['cold']:.1f} s cold, {stock['warm']:.1f} s warm")
    runs = [one_program(RECIPE, "decode_b4_c512", generate=True) for _ in range(rounds)]
    say(f"one program: {min(run['total'] for run in runs):.2f} s")
    build_bundle()
    repeated = []
    for _ in range(rounds):
        start = time.perf_counter()
        report = build_bundle()
        repeated.append(time.perf_counter() - start)
        assert report["compiled"] == 0, report
    say(f"repeated compile: {min(repeated):.2f} s")
    parts = {part: summary([run[part] for run in runs]) for part in ("lower", "generate", "total", "process")}
    return {"program": parts, "stock_warm_up": stock, "repeated": summary(repeated)}


def measure_70b(rounds: int, say) -> dict:
    """Lowering one decode program of a 70B-shaped model from its config.json alone."""
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(LLAMA_70B))
        recipe = Path(scratch) / "recipe.yaml"
        recipe.write_text(RECIPE_70B.format(model=model))
        run = one_program(recipe, "decode_b4_c8192", generate=False)
    say(f"70B decode program: {run['lower']:.1f} s, {run['peak_mb']} MB")
    return run


def one_program(recipe: Path, name: str, *, generate: bool) -> dict:
    """Make one program in a fresh process; ``process`` counts the start of Python and all imports as well."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compiling", str(recipe), name, "generate" if generate else "lower"],
        check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("XLA_")},
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1]) | {"process": time.perf_counter() - start}


def _main(recipe: str, name: str, what: str) -> None:
    import resource

    from neuron_aot.make import default_toolchain
    from neuron_aot.pipeline import make_plan
    from neuron_aot.recipe import load_recipe
    from neuron_aot.store import open_store

    with tempfile.TemporaryDirectory() as scratch:
        toolchain = default_toolchain()
        plan = make_plan(load_recipe(Path(recipe)), open_store(scratch), toolchain)
        program = next(item for item in plan.grid.programs if item.name == name)
        import jax  # noqa: F401  (imported before the clock starts, like torch below: a worker does it once)
        import torch  # noqa: F401

        start = time.perf_counter()
        lowered = toolchain.lower_plan(program)
        report = {"lower": time.perf_counter() - start, "hlo_bytes": len(lowered.hlo)}
        if what == "generate":
            generator = toolchain.code_generator(program.model.target)
            before = time.perf_counter()
            generator.generate(lowered.hlo, Path(scratch) / "artifact")
            report["generate"] = time.perf_counter() - before
        report["total"] = time.perf_counter() - start
        report["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(report))


if __name__ == "__main__":
    _main(*sys.argv[1:])
