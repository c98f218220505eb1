"""Explaining a miss, and compiling what a serve command asks for."""

from __future__ import annotations

import json
import shlex

import pytest
from fake_toolchain import write_recipe

COMMAND = "vllm serve model --max-model-len 256 --max-num-batched-tokens 128 --max-num-seqs 2 --port 8000"


def test_a_command_compiles_to_the_bundle_of_the_same_recipe(run):
    run("compile", "recipe.yaml", "--ref", "by/recipe", "--jobs", "1")
    report = json.loads(run("compile", "--from-command", COMMAND, "--ref", "by/command", "--json").stdout)
    assert (report["compiled"], report["hits"]) == (0, 4)
    assert json.loads(run("explain", "store@by/recipe", "store@by/command", "--json").stdout)["same"]
    assert run("coverage", "store@by/command", "--", *COMMAND.split()).stdout.startswith("complete: 4 of 4")


def test_the_command_that_serve_prints_is_covered_by_its_bundle(run):
    run("compile", "recipe.yaml", "--ref", "by/recipe", "--jobs", "1")
    command = json.loads(run("serve", "store@by/recipe", "--dry-run", "--json").stdout)["command"]
    assert run("coverage", "store@by/recipe", "--", *command).stdout.startswith("complete: 4 of 4")


def test_a_recipe_fills_what_a_command_leaves_open(run):
    made = run("compile", "recipe.yaml", "--from-command", "vllm serve model --max-num-seqs 1", "--dry-run", "--json")
    names = [program["name"] for program in json.loads(made.stdout)["programs"]]
    assert names == ["prefill_s128_c128", "prefill_s128_c256", "decode_b1_c256"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("vllm serve model --max-model-length 9", "did you mean --max-model-len"),
        ("vllm serve elsewhere/model", "is not on this machine"),
        ("vllm serve 'model", "cannot be split"),
        ("vllm serve model --max-num-seqs 0", "engine.max_num_seqs: wanted a positive whole number, found 0"),
        ("vllm serve model --additional-config '{\"neuron\": {}}'", "the nearest valid name is neuron_config"),
    ],
)
def test_a_command_that_cannot_be_compiled(run, command, words):
    assert words in run("compile", "--from-command", command, code=2).stderr


def test_a_model_that_is_elsewhere_is_compiled_from_its_config(run):
    elsewhere = ["--from-command", COMMAND.replace(" model ", " org/model "), "--model-config", "model/config.json"]
    run("compile", *elsewhere, "--shard", "1/2")
    told = run("compile", *elsewhere, "--shard", "2/2").stderr
    run(*shlex.split(told[told.index("neuron-aot assemble") :].strip())[1:], "--ref", "by/command")
    assert run("coverage", "store@by/command", "--", *COMMAND.split()).stdout.startswith("complete: 4 of 4")


def test_nothing_to_compile(run):
    assert "there is nothing to compile" in run("compile", code=2).stderr


def test_explain_names_the_nearest_bundle_its_fields_and_the_next_command(run, tmp_path):
    run("compile", "recipe.yaml", "--ref", "small", "--jobs", "1")
    write_recipe(tmp_path, config={"width": 9})
    run("compile", "recipe.yaml", "--ref", "wide", "--jobs", "1")
    write_recipe(tmp_path, engine={"max_num_seqs": 4})
    data = json.loads(run("explain", "store", "recipe.yaml", "--json", code=3).stdout)
    fields = {item["field"]: (item["wanted"], item["found"]) for item in data["differences"]}
    assert fields["max_num_seqs"] == (4, 2) and "config.json width" not in fields, "the one of the same model is nearer"
    assert data["missing"] == ["decode_b4_c256"] and data["estimated_seconds"] is not None
    assert data["next"] == "neuron-aot compile recipe.yaml --store store"
    told = run("explain", "store", "recipe.yaml", code=3).stdout
    assert "max_num_seqs: wanted 4, the bundle has 2" in told and "  - to make: 1 program, about 0 s of work" in told
    assert "program decode_b4_c256: not in the bundle; the nearest is decode_b2_c256" in told

    told = run("explain", "store@small", "--", *COMMAND.split(), "--max-num-seqs", "8", code=3).stdout
    next_command = told.splitlines()[-1].removeprefix("next       neuron-aot ")
    assert next_command.startswith('compile --store store --target cpu --ref small --from-command "vllm serve model')
    run(*shlex.split(next_command))
    assert "no field differs" in run("explain", "store@small", "--", *COMMAND.split(), "--max-num-seqs", "8").stdout
    assert "config.json width: wanted 9" in run("explain", "store@small", "store@wide", code=3).stdout


def test_explain_tells_versions_that_make_programs_again(run, monkeypatch):
    run("compile", "recipe.yaml", "--ref", "small", "--jobs", "1")
    from neuron_aot import keys

    monkeypatch.setattr(keys, "library_versions", lambda: {"torch": "99"})
    assert "here is 99: a compile makes the programs again" in run("explain", "store@small", "recipe.yaml").stdout
