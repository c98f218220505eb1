"""A Neuron bundle end to end on the simulator: compiled by the command line, served through vLLM, equal to the cpu
target's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml
from serving import TINY_ENGINE, TINY_NEURON, tiny_prompts, tokens_together

pytest.importorskip("vllm")


def neuron_aot(*arguments, check=True):
    command = [sys.executable, "-c", "from neuron_aot.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done


def write_recipe(folder, model, **engine):
    recipe = folder / "recipe.yaml"
    document = {"model": str(model), "engine": TINY_ENGINE | engine, "neuron_config": TINY_NEURON}
    document["compile"] = {"target": "trn2"}
    recipe.write_text(yaml.safe_dump(document))
    return recipe


def test_tokens_through_vllm_are_those_of_the_cpu_target(simulator, tiny, tmp_path):
    model, store = tiny("gqa"), tmp_path / "store"
    recipe = write_recipe(tmp_path, model)
    for target in ("trn2", "cpu"):
        neuron_aot("compile", recipe, "--target", target, "--store", store, "--ref", target)
    prompts = tiny_prompts(3, 31, 33, 100, 150)
    neuron, cpu = (
        tokens_together(f"{store}@{target}", model, tmp_path / target, prompts, 24) for target in ("trn2", "cpu")
    )
    assert neuron == cpu and all(len(tokens) == 24 for tokens in neuron)


def test_the_commands_on_a_neuron_bundle(simulator, tiny, tmp_path):
    model, store = tiny("gqa"), tmp_path / "store"
    recipe = write_recipe(tmp_path, model)
    planned = json.loads(neuron_aot("compile", recipe, "--store", store, "--dry-run", "--json").stdout)
    assert planned["missing"] == 3 and planned["memory"]["num_blocks"] == 40 and not store.exists()
    checked = json.loads(neuron_aot("preflight", recipe, "--json").stdout)
    assert checked["ok"] and len(checked["programs"]) == 3 and not simulator.runs

    neuron_aot("compile", recipe, "--store", store, "--ref", "x")
    again = neuron_aot("compile", recipe, "--store", store, "--ref", "x", "--jobs", "1")
    assert "0 compiled" in again.stderr and len(simulator.runs) == 3  # nor was it asked for its version again
    assert "left for programs" in neuron_aot("show", f"{store}@x").stdout
    found = json.loads(neuron_aot("inspect", f"{store}@x#decode_b2_c256", "--json").stdout)
    assert found["artifact"]["format"] == "neff" and found["artifact"]["subgraphs"] == ["sg00"]
    assert found["hlo"]["aliases"] == 6 and found["hlo"]["operators"]["dot"] == 19
    verified = neuron_aot("verify", f"{store}@x", "--execute", "--recompute")
    assert "ok" in verified.stdout

    report = tmp_path / "report"
    neuron_aot("reproduce", f"{store}@x#decode_b2_c256", report)
    assert {path.name for path in report.iterdir()} == {
        "about.json",
        "command.sh",
        "compiler.log",
        "model.hlo_module.pb",
    }
    before = len(simulator.runs)
    subprocess.run(["sh", "command.sh"], cwd=report, check=True)
    assert len(simulator.runs) == before + 1 and (report / "model.neff").is_file()
    assert not any(
        str(tmp_path) in path.read_text() for path in report.iterdir() if path.suffix in (".json", ".sh", ".log")
    )
    again = neuron_aot("reproduce", f"{store}@x#decode_b2_c256", report, check=False)
    assert again.returncode == 2 and "in use" in again.stderr
    unknown = neuron_aot("inspect", f"{store}@x#decode_b9_c256", check=False)
    assert unknown.returncode == 2 and "decode_b2_c256" in unknown.stderr and "Traceback" not in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--target", "trn1", "--lnc", "2"], 2, "NCC_EARG001"),
        (["--target", "trn9"], 2, "unknown target 'trn9'"),
        (["--target", "cpu", "--lnc", "2"], 2, "neither compiler flags"),
    ],
)
def test_misuse_is_refused_before_anything_is_made(simulator, tiny, tmp_path, arguments, code, told):
    done = neuron_aot(
        "compile", write_recipe(tmp_path, tiny("gqa")), "--store", tmp_path / "s", *arguments, check=False
    )
    assert done.returncode == code and told in done.stderr and "Traceback" not in done.stderr
    assert not simulator.runs and not (tmp_path / "s").exists()


def test_a_refusal_of_the_compiler_reaches_the_command_line(simulator, tiny, tmp_path):
    simulator.tell(faults={"prefill_32x2": "NCC_EXTP004"})
    recipe = write_recipe(tmp_path, tiny("gqa"))
    done = neuron_aot("compile", recipe, "--store", tmp_path / "s", "--jobs", "1", check=False)
    assert done.returncode == 8 and "NCC_EXTP004: the program has too many instructions" in done.stderr
    assert "take a smaller bucket" in done.stderr and "log: " in done.stderr and "Traceback" not in done.stderr
    assert len(list((tmp_path / "s" / "programs").iterdir())) == 2


def test_smollm2_through_vllm_gives_the_tokens_of_the_cpu_target(simulator, smollm2, tmp_path):
    engine = {"max_model_len": 256, "max_num_batched_tokens": 128, "max_num_seqs": 4, "block_size": 32}
    recipe = write_recipe(tmp_path, smollm2, **engine, num_gpu_blocks_override=34)
    document = yaml.safe_load(recipe.read_text())
    document["neuron_config"] = {"num_batched_tokens_buckets": [128], "num_seqs_buckets": [4]}
    recipe.write_text(yaml.safe_dump(document))
    found = []
    for target in ("trn2", "cpu"):
        neuron_aot("compile", recipe, "--target", target, "--store", tmp_path / "s", "--ref", target, "--jobs", "1")
        found.append(
            tokens_together(f"{tmp_path / 's'}@{target}", smollm2, tmp_path / target, tiny_prompts(5, 40, 140), 32)
        )
    assert found[0] == found[1] and all(len(tokens) == 32 for tokens in found[0])
