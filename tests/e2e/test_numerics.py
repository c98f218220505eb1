"""One layer at the widths of real models, compiled and run at every batch size class, against the definition.

XLA:CPU picks kernels, layouts and fusions by shape, and has been wrong for some: toy widths alone would not show it.
"""

from __future__ import annotations

import pytest
from neuron_aot_runtime.contract.manifest import Artifact, Manifest, Program, Serving
from toy import program_plan

from neuron_aot.codegen import code_generator
from neuron_aot.execute import ProgramChecker
from neuron_aot.lower import lower_program
from neuron_aot.models import family

WIDTHS = {
    "smollm2": (576, 1536, 9, 3, 64),
    "llama-1b": (2048, 8192, 32, 8, 64),
    "llama-8b": (1024, 3584, 8, 2, 128),  # its head size and grouping, a quarter of its width
    "no groups": (768, 2048, 6, 6, 128),
}
SHAPES = [("decode", size, 512) for size in (1, 2, 3, 4, 8, 16)] + [("prefill", 128, 128), ("prefill", 64, 512)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", WIDTHS)
def test_programs_equal_their_definition_at_real_widths(name, dtype, tmp_path):
    width, inner, heads, kv_heads, head_size = WIDTHS[name]
    config = {
        "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_size, "vocab_size": 2048, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    llama, generator = family("LlamaForCausalLM"), code_generator("cpu")
    made = []
    for phase, size, context in SHAPES:
        plan = program_plan(phase, size, context, config, dtype=dtype, block_size=32, num_blocks=129)
        layout = llama.layout(plan.model)
        lowered = lower_program(plan, llama.program(plan), layout)
        artifact = tmp_path / plan.name
        generator.generate(lowered.hlo, artifact)
        program = Program(
            name=plan.name, phase=phase, bucket=plan.bucket, program_key="0" * 64,
            artifact=Artifact(format="xla-cpu", digest="sha256:" + "0" * 64, size=0),
            inputs=lowered.inputs, outputs=lowered.outputs,
        )  # fmt: skip
        made.append((plan, program, artifact))
    manifest = Manifest(
        target="cpu", world_size=1, model=layout.spec, serving=Serving(engine={}, neuron_config={}),
        kv_cache=layout.kv_cache, params=layout.params, states=layout.states, weight_map=layout.weight_map,
        programs=[program for _, program, _ in made], requires=generator.requires(), toolchain={},
    )  # fmt: skip
    checker = ProgramChecker(manifest, layout)
    wrong = [result for item in made if not (result := checker.check(*item)).ok]
    checker.close()
    assert wrong == []
