"""The model definitions against Hugging Face transformers, float32, random weights, paged and in pieces."""

from __future__ import annotations

import pytest
import torch
from neuron_aot_runtime.contract.errors import RecipeError
from neuron_aot_runtime.contract.facts import compare_facts
from toy import CONFIG, decode_inputs, empty_states, model_plan, prefill_inputs, program_plan, tensors

from neuron_aot.models import FAMILIES, family

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64, "rope_theta": 10000.0}  # fmt: skip
VARIANTS = {
    "llama 2": {"num_key_value_heads": 4},
    "grouped heads": {},
    "one kv head": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head size": {"head_dim": 24},
    "llama 3 rope": {"rope_parameters": LLAMA3},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "epsilon": {"rms_norm_eps": 1e-2},
}


def reference(config: dict):
    """(transformers model with every parameter random, its config as it would be saved)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 else 0.0, 0.2)
    return model, model.config.to_dict()


def params_of(model, layout) -> dict[str, torch.Tensor]:
    """What the weight map makes of the model's state dict."""
    state = model.state_dict()
    return {
        entry.param: torch.cat([state[source.tensor] for source in entry.sources], entry.axis)
        for entry in layout.weight_map
    }


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_prefill_in_pieces_then_decode_equals_transformers(variant):
    model, saved = reference(CONFIG | VARIANTS[variant])
    plan = model_plan(saved)
    llama = family("LlamaForCausalLM")
    params, states = params_of(model, llama.layout(plan)), empty_states(plan)
    tokens = torch.randint(0, 128, (45,), generator=torch.Generator().manual_seed(1)).tolist()
    blocks = [7, 3, 30, 12, 5, 9]
    wanted = model(torch.tensor([tokens])).logits[0]

    def run(program, inputs):
        nonlocal states
        function, *_ = llama.program(program)
        outputs, states = function(params, states, tensors(inputs))
        return outputs["logits"]

    for start, stop in ((0, 16), (16, 21), (21, 37)):
        inputs = prefill_inputs(tokens[start:stop], computed=start, size=16, context=64, blocks=blocks)
        found = run(program_plan("prefill", 16, 64, saved), inputs)
        torch.testing.assert_close(found[0], wanted[stop - 1], atol=2e-4, rtol=1e-4)
    for position in range(37, 45):
        rows = [(tokens[position], position, blocks)]
        found = run(program_plan("decode", 2, 64, saved), decode_inputs(rows, size=2, context=64))
        torch.testing.assert_close(found[0], wanted[position], atol=2e-4, rtol=1e-4)


@torch.no_grad()
def test_greedy_program_gives_the_token_of_the_largest_logit():
    model, saved = reference(CONFIG)
    llama = family("LlamaForCausalLM")
    plan = program_plan("prefill", 16, 16, saved, greedy=True)
    function, _, outputs = llama.program(plan)
    assert [(spec.name, spec.dtype, spec.shape) for spec in outputs] == [("tokens", "int32", (1,))]
    inputs = tensors(prefill_inputs([5, 9, 77], computed=0, size=16, context=16, blocks=[1, 2]))
    found, _ = function(params_of(model, llama.layout(plan.model)), empty_states(plan.model), inputs)
    assert found["tokens"].tolist() == [model(torch.tensor([[5, 9, 77]])).logits[0, -1].argmax().item()]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_low_freq_factor"),
        ({"rope_scaling": {"type": "linear"}}, "rope_factor"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_what_the_family_would_compute_wrongly_is_refused_by_name(change, named):
    with pytest.raises(RecipeError) as caught:
        family("LlamaForCausalLM").layout(model_plan(CONFIG | change))
    assert named in str(caught.value)


def test_an_unknown_architecture_is_refused_with_the_known_ones():
    with pytest.raises(RecipeError) as caught:
        family("GPT2LMHeadModel")
    assert "LlamaForCausalLM" in str(caught.value)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_old_and_new_spellings_of_a_config_are_the_same_facts(architecture):
    facts = model_plan(
        CONFIG | {"rope_theta": 5e5, "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"}}
    ).facts
    assert compare_facts(facts, CONFIG | {"rope_parameters": LLAMA3 | {"rope_theta": 500000}}) == []
    differing = compare_facts(facts, CONFIG | {"rope_parameters": LLAMA3})
    assert [name for name, *_ in differing] == ["rope_theta"]


def test_layout_needs_no_torch():
    import subprocess
    import sys

    code = "import sys; sys.modules['torch'] = None; from neuron_aot.models import family; print(len(family('LlamaForCausalLM').FACTS))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 10
