"""Keys: nothing of the place is in them (T07, T09), everything that changes a program is (T08)."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from neuron_aot_runtime.contract.facts import fact, read_facts
from neuron_aot_runtime.contract.manifest import Bucket

from neuron_aot import keys
from neuron_aot.program import LoweredProgram, ModelPlan, ProgramPlan

IDENTITY = {"compiler": "xla-cpu", "version": "1", "flags": ""}
LOWERING = {"sources": "sha256:" + "0" * 64, "libraries": {"torch": "2", "jax": "0.10"}}
FACTS = read_facts((fact("width"), fact("eps")), {"width": 8, "eps": 1e-5})
MODEL = ModelPlan(
    target="cpu", architecture="A", facts=FACTS, dtype="float32", kv_dtype="float32", block_size=32, num_blocks=9
)
PLAN = ProgramPlan(model=MODEL, phase="decode", bucket=Bucket(size=1, context=128))
LOWERED = LoweredProgram(hlo=b"module", inputs=(), outputs=())


def request(plan=PLAN, identity=IDENTITY, lowering=LOWERING) -> str:
    return keys.request_key(plan, identity, lowering)


def program(lowered=LOWERED, **changed) -> str:
    return keys.program_key(lowered, **({"target": "cpu", "code_generator": IDENTITY} | changed))


def with_model(**changed) -> ProgramPlan:
    return dataclasses.replace(PLAN, model=dataclasses.replace(MODEL, **changed))


CHANGED_MODEL = {
    "target": "trn2",
    "architecture": "B",
    "facts": read_facts((fact("width"), fact("eps")), {"width": 16, "eps": 1e-5}),
    "dtype": "bfloat16",
    "kv_dtype": "bfloat16",
    "block_size": 64,
    "num_blocks": 10,
    "world_size": 2,
    "greedy": True,
    "sequence_parallel": True,
}


def test_keys_are_64_hex_digits():
    assert len(request()) == len(program()) == 64
    assert int(request(), 16) and int(program(), 16)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ModelPlan)])
def test_each_field_of_the_model_plan_changes_the_request_key(field):
    assert request(with_model(**{field: CHANGED_MODEL[field]})) != request()


@pytest.mark.parametrize(
    "other",
    [
        request(dataclasses.replace(PLAN, phase="prefill")),
        request(dataclasses.replace(PLAN, bucket=Bucket(size=2, context=128))),
        request(dataclasses.replace(PLAN, bucket=Bucket(size=1, context=256))),
        *(request(identity=IDENTITY | {name: "other"}) for name in IDENTITY),
        request(lowering=LOWERING | {"sources": "sha256:" + "1" * 64}),
        request(lowering=LOWERING | {"libraries": {"torch": "3", "jax": "0.10"}}),
        request(lowering=LOWERING | {"libraries": {"torch": "2", "jax": "0.11"}}),
    ],
)
def test_what_else_changes_the_request_key(other):
    assert other != request()


def test_how_a_fact_was_found_does_not_change_the_request_key():
    same = read_facts((fact("width", "n_embd", default=1), fact("eps")), {"n_embd": 8, "eps": 0.00001})
    assert request(with_model(facts=same)) == request()


@pytest.mark.parametrize(
    "other",
    [
        program(LoweredProgram(hlo=b"another", inputs=(), outputs=())),
        program(target="trn2"),
        program(code_generator=IDENTITY | {"logical_core_size": "2"}),
        program(kernel_sources={"attention": "sha256:" + "0" * 64}),
        *(program(code_generator=IDENTITY | {name: "other"}) for name in IDENTITY),
    ],
)
def test_what_changes_the_program_key(other):
    assert other != program()


def test_a_refactor_that_lowers_to_the_same_module_keeps_the_program_key():
    assert program(LoweredProgram(hlo=b"module", inputs=(), outputs=())) == program()


def test_the_source_digest_follows_every_lowering_source_and_only_those(tmp_path):
    for name in ("models/llama.py", "lower/rules/dot.py", "program.py", "pipeline.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a = 1\n")
    first = keys.source_digest(tmp_path)
    (tmp_path / "pipeline.py").write_text("a = 2\n")
    (tmp_path / "models/__pycache__").mkdir()
    (tmp_path / "models/__pycache__/llama.cpython-311.pyc").write_bytes(b"x")
    assert keys.source_digest(tmp_path) == first
    seen = {first}
    for name in ("models/llama.py", "lower/rules/dot.py", "program.py"):
        (tmp_path / name).write_text("a = 2\n")
        seen.add(keys.source_digest(tmp_path))
    (tmp_path / "models/llama.py").rename(tmp_path / "models/other.py")
    seen.add(keys.source_digest(tmp_path))
    assert len(seen) == 5


SCRIPT = """
import json, sys
from pathlib import Path
from fake_toolchain import FAKE, fake_lower, FakeFamily
from neuron_aot import keys
from neuron_aot.pipeline import make_plan
from neuron_aot.recipe import load_recipe
from neuron_aot.store import open_store

plan = make_plan(load_recipe(Path(sys.argv[1])), open_store(sys.argv[2]), FAKE)
family = FakeFamily()
lowered = [fake_lower(item, family.program(item), family.layout(plan.model)) for item in plan.grid.programs]
programs = [keys.program_key(item, target="cpu", code_generator={"compiler": "fake"}) for item in lowered]
heavy = [name for name in ("torch", "jax", "jaxlib", "transformers", "vllm") if name in sys.modules]
print(json.dumps([plan.request_keys, programs, keys.lowering_identity(), heavy]))
"""


def test_keys_are_the_same_in_any_home_directory_and_hash_seed(tmp_path, compiler):
    """T07 and T09: other HOME, user, working directory, paths, PID, environment order, hash seed; MD5 disabled."""
    from fake_toolchain import write_recipe

    results = []
    for index in range(4):
        place = tmp_path / f"place {index}"
        recipe = write_recipe(place / "recipes")
        environment = {
            "HOME": str(place),
            "USER": f"user{index}",
            "HOSTNAME": f"host{index}",
            "XDG_CACHE_HOME": str(place / "cache"),
            "PYTHONHASHSEED": str(index * 7919),
            "PYTHONPATH": str(Path(__file__).parent),
            "PATH": os.environ["PATH"],
            "FAKE_COMPILER": os.environ["FAKE_COMPILER"],
            f"EXTRA_{index}": "x",
        }
        items = list(environment.items())
        random.Random(index).shuffle(items)
        code = SCRIPT if index else "import hashlib\ndel hashlib.md5\n" + SCRIPT
        command = [sys.executable, "-c", code, str(recipe), str(place / "store")]
        run = subprocess.run(command, env=dict(items), cwd=place, capture_output=True, text=True, check=True)
        results.append(json.loads(run.stdout))
    assert all(result == results[0] for result in results)
    assert results[0][3] == [], "planning must not import these"
