"""Recipes for Neuron targets: compile options, the environment's settings, and the KV cache in the plan."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fake_toolchain import FAKE, FakeGenerator, write_recipe
from neuron_aot_runtime.contract.errors import RecipeError

from neuron_aot.cli._recipe import command_recipe
from neuron_aot.pipeline import make_plan, plan_shapes
from neuron_aot.recipe import load_recipe
from neuron_aot.store import open_store
from neuron_aot.targets import CompileOptions


def recipe_with(tmp_path, compile_section, **options):
    path = write_recipe(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"compile": compile_section}))
    return load_recipe(path, **options)


@pytest.mark.parametrize("flags", ["-O1 --x=2", ["-O1", "--x=2"]])
def test_compile_options(tmp_path, flags):
    recipe = recipe_with(tmp_path, {"target": "trn2", "lnc": 1, "compiler_flags": flags})
    assert recipe.options == CompileOptions(lnc=1, flags=("-O1", "--x=2")) and not recipe.blocks_given
    assert recipe_with(tmp_path, {"lnc": 1}, lnc=2).options.lnc == 2


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"lnc": 4}, "compile.lnc: wanted 1 or 2"),
        ({"lnc": True}, "compile.lnc: wanted 1 or 2"),
        ({"compiler_flags": 7}, "compile.compiler_flags"),
        ({"compiler_flags": "--x 'y"}, "cannot be split"),
        ({"compiler_flag": "-O1"}, "nearest valid name is compiler_flags"),
    ],
)
def test_wrong_compile_options_are_named(tmp_path, section, told):
    with pytest.raises(RecipeError) as caught:
        recipe_with(tmp_path, section)
    assert told in str(caught.value)


def test_the_environment_names_the_target_unless_the_command_does(tmp_path, monkeypatch):
    path = write_recipe(tmp_path)
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    assert command_recipe(path, target=None, lnc=None).target == "cpu"
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    monkeypatch.setenv("NEURON_LIBTORCH_COMPILATION_TIMEOUT", "90")
    assert command_recipe(path, target=None, lnc=None).target == "trn2"
    assert command_recipe(path, target="trn1", lnc=None).target == "trn1"
    assert command_recipe(path, target=None, lnc=1).options == CompileOptions(lnc=1, timeout=90)


class NeuronFake(FakeGenerator):
    target = "trn2"

    def requires(self):
        return {"logical_core_size": "2"}


def neuron_fake(target, options=None):
    return NeuronFake()


def test_the_memory_rule_decides_the_number_of_blocks_and_they_are_in_the_keys(compiler, tmp_path, monkeypatch):
    toolchain, store = replace(FAKE, code_generator=neuron_fake), open_store(str(tmp_path / "store"))
    recipe = load_recipe(write_recipe(tmp_path, engine={"max_num_seqs": 2}), target="trn2")
    plan = make_plan(recipe, store, toolchain)
    block = 32 * 8 * 2  # block size x width x bfloat16
    assert plan.memory.num_blocks == min(int(24e9 * 0.9 * 0.3) // block, (1 << 30) // 32)
    assert plan.recipe.serving.num_blocks == plan.model.num_blocks == plan.memory.num_blocks

    monkeypatch.setenv("VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION", "0.1")
    assert not set(make_plan(recipe, store, toolchain).request_keys.values()) & set(plan.request_keys.values())
    monkeypatch.setenv("VLLM_NEURON_MIN_KV_BUDGET_GIB", "4")
    with pytest.raises(RecipeError, match="below minimum threshold"):
        make_plan(recipe, store, toolchain)
    assert plan_shapes(recipe, toolchain, check_memory=False).grid.programs


def test_an_override_wins_and_the_cpu_target_has_no_budget(compiler, tmp_path):
    path = write_recipe(tmp_path, engine={"num_gpu_blocks_override": 20})
    shapes = plan_shapes(load_recipe(path, target="trn2"), replace(FAKE, code_generator=neuron_fake))
    assert (shapes.memory.num_blocks, shapes.memory.sized_by) == (20, "num_gpu_blocks_override")
    assert plan_shapes(load_recipe(path), FAKE).memory is None
