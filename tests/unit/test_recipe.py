"""Recipes: strict, and every problem at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from neuron_aot_runtime.contract.errors import RecipeError

from neuron_aot.recipe import load_recipe

CONFIG = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "max_position_embeddings": 2048}


@pytest.fixture
def write(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))

    def write_text(text: str) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return path

    return write_text


def problems(path: Path) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    return str(caught.value)


def test_the_shortest_recipe(write, monkeypatch, tmp_path):
    path = write("model: model\n")
    monkeypatch.chdir("/")  # the model's path is relative to the recipe, not to where one stands
    recipe = load_recipe(path)
    assert (recipe.architecture, recipe.target) == ("LlamaForCausalLM", "cpu")
    assert recipe.model == tmp_path / "model" and recipe.serving.max_model_len == 2048


def test_a_config_file_alone_is_enough(write):
    assert load_recipe(write("model: model/config.json\n")).architecture == "LlamaForCausalLM"


def test_target_comes_from_the_recipe_and_the_command_line_wins(write):
    path = write("model: model\ncompile: {target: trn2}\n")
    assert load_recipe(path).target == "trn2"
    assert load_recipe(path, target="cpu").target == "cpu"


def test_every_problem_is_listed_with_its_key(write):
    text = problems(
        write(
            "model: nowhere\nengin: {}\nmax_num_seqs: 8\ncompile: {taget: cpu}\n"
            "engine: {max_num_seqs: 8, dtype: half, num_seqs_buckets: [8]}\nneuron_config: {num_seqs_buckets: [4]}\n"
        )
    )
    for told in (
        "7 problems",
        "engin: unknown; the nearest valid name is engine",
        "max_num_seqs: is not an option of the recipe's top level; it is a vLLM engine argument",
        "compile.taget: unknown; the nearest valid name is target",
        "/nowhere does not exist",
        "engine.dtype: float16",
        "engine.num_seqs_buckets",
        "neuron_config.num_seqs_buckets: wanted a largest bucket equal to max_num_seqs (8), found [4]",
    ):
        assert told in text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model: model\nmodel: other\n", "line 2, column 1: the key 'model' is there already, on line 1"),
        ("model: model\nengine:\n  a: 1\n  b: 2\n  a: 3\n", "line 5, column 3"),
        ("model: [\n", "line 2"),
        ("\tmodel: x\n", "line 1"),
        ("", "an empty file"),
        ("- a\n", "found:  list"),
        ("model: model\nengine: [1]\n", "engine: wanted a mapping"),
        ("engine: {}\n", "model: wanted the path"),
        ("model: meta-llama/Llama-3.3-70B\n", "model hubs are not read"),
        ("model: !!python/object:os.system x\n", "could not determine a constructor"),
        ("? [a]\n: 1\n", "a key must be a word"),
    ],
)
def test_what_is_not_a_recipe(write, text, told):
    assert told in problems(write(text))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("{", "is not JSON"),
        ("[]", "no JSON object"),
        ("{}", "exactly one architecture, found None"),
        ('{"architectures": ["A", "B"]}', "exactly one architecture"),
    ],
)
def test_a_bad_config_json(write, tmp_path, config, told):
    path = write("model: model\n")
    (tmp_path / "model" / "config.json").write_text(config)
    assert told in problems(path)


def test_a_mistyped_path_gets_the_nearest(write):
    path = write("model: model\n")
    assert "did you mean" in problems(path.with_name("recipes.yaml"))


def test_the_shipped_recipe_is_valid(tmp_path):
    shipped = Path(__file__).parents[2] / "recipes" / "smollm2-135m.yaml"
    (tmp_path / "recipes").mkdir()
    (tmp_path / "models/SmolLM2-135M-Instruct").mkdir(parents=True)
    (tmp_path / "models/SmolLM2-135M-Instruct/config.json").write_text(
        json.dumps(CONFIG | {"max_position_embeddings": 8192})
    )
    (tmp_path / "recipes/r.yaml").write_text(shipped.read_text())
    serving = load_recipe(tmp_path / "recipes/r.yaml").serving
    assert (serving.dtype, serving.max_model_len, serving.max_num_seqs) == ("bfloat16", 2048, 8)
    assert serving.decode_contexts() == (512, 1024, 2048)
