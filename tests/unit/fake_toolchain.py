"""A toolchain without torch, XLA or a model: real processes, real files, and a compiler that does as it is told.

The compiler's behaviour is a file of JSON named by FAKE_COMPILER; each of its runs adds a line to ``<that>.log``.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from neuron_aot_runtime.contract.canonical import canonical_json
from neuron_aot_runtime.contract.errors import CompileError, LoweringError
from neuron_aot_runtime.contract.facts import fact
from neuron_aot_runtime.contract.manifest import KVCacheSpec, ModelSpec, TensorSpec, WeightEntry, WeightSource

from neuron_aot.make import Toolchain
from neuron_aot.program import LoweredProgram, ModelLayout, ModelPlan, ProgramPlan

CONFIG = {"architectures": ["FakeForCausalLM"], "torch_dtype": "bfloat16", "max_position_embeddings": 1024, "width": 8}


class FakeFamily:
    FACTS = (fact("width"),)

    def layout(self, plan: ModelPlan) -> ModelLayout:
        width = next(item.value for item in plan.facts if item.name == "width")
        weight = TensorSpec(name="w", role="param", shape=(width,), dtype=plan.dtype)
        state = TensorSpec(
            name="k", role="state", shape=(plan.num_blocks, 1, plan.block_size, width), dtype=plan.kv_dtype
        )
        return ModelLayout(
            spec=ModelSpec(architecture=plan.architecture, facts=plan.facts, vocab_size=16, hidden_size=width),
            params=(weight,),
            states=(state,),
            weight_map=(WeightEntry(param="w", sources=(WeightSource(tensor="w", shape=(width,)),)),),
            kv_cache=KVCacheSpec(
                num_layers=1, num_blocks=plan.num_blocks, block_size=plan.block_size, num_kv_heads=1, head_size=width,
                dtype=plan.kv_dtype,
            ),
        )  # fmt: skip

    def program(self, plan: ProgramPlan):
        inputs = (TensorSpec(name="ids", role="input", shape=(plan.bucket.size,), dtype="int32"),)
        outputs = (TensorSpec(name="logits", role="output", shape=(1, 16), dtype="float32"),)
        return None, inputs, outputs


class FakeGenerator:
    name, target, artifact_format = "fake", "cpu", "fake"

    def identity(self) -> dict[str, str]:
        return {"compiler": "fake", "version": str(behaviour().get("version", "1"))}

    def requires(self) -> dict[str, str]:
        return {"fake": "1"}

    def check(self) -> None:
        pass

    def generate(self, hlo: bytes, artifact: Path) -> None:
        told = behaviour()
        name = json.loads(hlo)["name"]
        with open(os.environ["FAKE_COMPILER"] + ".log", "a") as log:
            log.write(name + "\n")
        time.sleep(told.get("seconds", 0))
        if name in told.get("fail", ()):
            raise CompileError("the fake compiler refuses", found="FAKE_E001")
        if name in told.get("die", ()) or (name in told.get("die_once", ()) and runs().count(name) == 1):
            artifact.write_bytes(hlo[:3])
            os.kill(os.getpid(), signal.SIGKILL)
        if name in told.get("empty", ()):
            artifact.touch()
            return
        artifact.write_bytes(b"artifact " + hlo + (os.urandom(8) if told.get("random") else b""))


def behaviour() -> dict:
    return json.loads(Path(os.environ["FAKE_COMPILER"]).read_text())


def runs() -> list[str]:
    """The programs the compiler ran for, in order."""
    log = Path(os.environ["FAKE_COMPILER"] + ".log")
    return log.read_text().split() if log.exists() else []


def fake_family(architecture: str) -> FakeFamily:
    return FakeFamily()


def fake_lower(plan: ProgramPlan, definition, layout: ModelLayout) -> LoweredProgram:
    if plan.name in behaviour().get("unlowerable", ()):
        raise LoweringError("the fake model has an operator without a rule")
    _, inputs, outputs = definition
    shapes = [spec.model_dump(mode="json") for spec in (*layout.params, *layout.states, *inputs, *outputs)]
    return LoweredProgram(
        hlo=canonical_json({"name": plan.name, "shapes": shapes, "greedy": plan.model.greedy}),
        inputs=inputs,
        outputs=outputs,
    )


def fake_generator(target: str, options=None) -> FakeGenerator:
    return FakeGenerator()


def fake_lowering_identity() -> dict:
    return {"sources": "sha256:" + "0" * 64, "libraries": {"torch": "0"}}


FAKE = Toolchain(
    family=fake_family, lower=fake_lower, code_generator=fake_generator, lowering_identity=fake_lowering_identity
)


def write_recipe(directory: Path, *, config: dict | None = None, engine: dict | None = None) -> Path:
    """A recipe of four programs: prefill 128 and 256 (own context and longest), decode 1 and 2, less what is equal."""
    (directory / "model").mkdir(parents=True, exist_ok=True)
    (directory / "model" / "config.json").write_text(json.dumps(CONFIG | (config or {})))
    settings = {"max_model_len": 256, "max_num_batched_tokens": 128, "max_num_seqs": 2} | (engine or {})
    recipe = directory / "recipe.yaml"
    recipe.write_text(json.dumps({"model": "model", "engine": settings}))  # JSON is YAML
    return recipe
