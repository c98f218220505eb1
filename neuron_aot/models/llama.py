"""The Llama family (Llama 2, Llama 3.x, SmolLM2): pre-norm decoder, rotary positions, grouped KV heads, SwiGLU.

Legend: N tokens, R sequences, W hidden size, H query heads, K KV heads, D head size, V vocabulary; of one rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from neuron_aot_runtime.contract.errors import RecipeError
from neuron_aot_runtime.contract.facts import Fact, fact

from ..program import ModelLayout, ModelPlan, ProgramPlan
from .layout import LayoutBuilder
from .paged import Step, program_inputs, program_outputs
from .sharding import Division, attention_heads, even

_ROPE = ("rope_parameters", "rope_scaling")

FACTS = (
    fact("hidden_size"),
    fact("intermediate_size"),
    fact("num_hidden_layers"),
    fact("num_attention_heads"),
    fact("num_key_value_heads"),
    fact("head_dim"),
    fact("vocab_size"),
    fact("hidden_act", default="silu"),
    fact("rms_norm_eps", default=1e-6),
    fact("tie_word_embeddings", default=False),
    fact("attention_bias", default=False),
    fact("mlp_bias", default=False),
    fact("quantization_config"),
    fact("rope_theta", "rope_parameters.rope_theta", "rope_theta", default=10000),
    fact("rope_type", "rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type", default="default"),
    *(
        fact(f"rope_{name}", *(f"{source}.{name}" for source in _ROPE))
        for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    ),
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The facts, checked and typed."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    rms_norm_eps: float
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    inverse_frequencies: tuple[float, ...]


def read_config(facts: tuple[Fact, ...]) -> Config:
    """Raises RecipeError for a setting that this family would compute wrongly."""
    value = {item.name: item.value for item in facts}
    needed = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    wrong = [f"{name}: wanted a whole number, found {value[name]!r}" for name in needed if not _positive(value[name])]
    if value["hidden_act"] != "silu":
        wrong.append(f"hidden_act: wanted 'silu', found {value['hidden_act']!r}")
    if value["quantization_config"] is not None:
        wrong.append("quantization_config: quantized checkpoints are not supported yet")
    if value["rope_type"] not in ("default", "linear", "llama3"):
        wrong.append(f"rope_type: wanted default, linear or llama3, found {value['rope_type']!r}")
    heads, kv_heads = value["num_attention_heads"], value["num_key_value_heads"] or value["num_attention_heads"]
    if not wrong and heads % kv_heads:
        wrong.append(f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads})")
    if wrong:
        raise RecipeError("config.json describes a model that the Llama family cannot compute", details=wrong)
    head_size = value["head_dim"] or value["hidden_size"] // heads
    return Config(
        hidden_size=value["hidden_size"],
        intermediate_size=value["intermediate_size"],
        num_layers=value["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        vocab_size=value["vocab_size"],
        rms_norm_eps=float(value["rms_norm_eps"]),
        tied=value["tie_word_embeddings"],
        attention_bias=value["attention_bias"],
        mlp_bias=value["mlp_bias"],
        inverse_frequencies=_inverse_frequencies(value, head_size),
    )


def _positive(value) -> bool:
    return isinstance(value, int) and value > 0


def _inverse_frequencies(value: dict, head_size: int) -> tuple[float, ...]:
    """Frequency of each rotated pair, [D/2]; computed in float32 as the Hugging Face models do.

    ``linear`` divides all by the factor. ``llama3`` (Llama 3.1 reference code) divides the long wave lengths only
    and blends between ``low_freq_factor`` and ``high_freq_factor``.
    """
    import numpy as np

    theta = np.float32(value["rope_theta"])
    exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    frequencies = (np.float32(1.0) / theta**exponents).astype(np.float32)
    kind = value["rope_type"]
    if kind == "default":
        return tuple(map(float, frequencies))
    missing = [name for name in ("rope_factor",) if value[name] is None]
    if kind == "llama3":
        names = ("rope_low_freq_factor", "rope_high_freq_factor", "rope_original_max_position_embeddings")
        missing += [name for name in names if value[name] is None]
    if missing:
        raise RecipeError(f"rope scaling {kind!r} lacks {', '.join(missing)} in config.json")
    factor = np.float32(value["rope_factor"])
    if kind == "linear":
        return tuple(map(float, frequencies / factor))
    low, high = np.float32(value["rope_low_freq_factor"]), np.float32(value["rope_high_freq_factor"])
    original = value["rope_original_max_position_embeddings"]
    wave_lengths = np.float32(2 * math.pi) / frequencies
    smooth = ((original / wave_lengths - low) / (high - low)).astype(np.float32)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    scaled = np.where(wave_lengths > original / low, frequencies / factor, blended)
    scaled = np.where(wave_lengths < original / high, frequencies, scaled)
    return tuple(map(float, scaled.astype(np.float32)))


@dataclass(frozen=True)
class _Sharding:
    """How a model's axes are divided over the ranks."""

    heads: Division
    kv_heads: Division
    intermediate: Division
    vocab: Division


def _sharding(config: Config, world_size: int) -> _Sharding:
    """Raises RecipeError for more ranks than there is to divide."""
    return _Sharding(
        *attention_heads(config.num_heads, config.num_kv_heads, world_size),
        even(config.intermediate_size, world_size, "intermediate_size"),
        even(config.vocab_size, world_size, "vocab_size"),
    )


def layout(plan: ModelPlan) -> ModelLayout:
    config = read_config(plan.facts)
    sharding = _sharding(config, plan.world_size)
    width, size, middle = config.hidden_size, config.head_size, sharding.intermediate
    queries, keys = sharding.heads.times(size), sharding.kv_heads.times(size)
    build = LayoutBuilder(plan)
    build.table("embed", "model.embed_tokens.weight", sharding.vocab, width)
    for index in range(config.num_layers):
        ours, theirs = f"layers.{index}", f"model.layers.{index}"
        attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        build.whole(f"{ours}.attention_norm", f"{theirs}.input_layernorm.weight", (width,))
        projections = (("q_proj", queries), ("k_proj", keys), ("v_proj", keys))
        build.column_parallel(f"{ours}.qkv", attention, projections, width, bias=config.attention_bias)
        build.row_parallel(f"{ours}.out", f"{attention}.o_proj", width, queries, bias=config.attention_bias)
        build.whole(f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm.weight", (width,))
        gated = (("gate_proj", middle), ("up_proj", middle))
        build.column_parallel(f"{ours}.gate_up", mlp, gated, width, bias=config.mlp_bias)
        build.row_parallel(f"{ours}.down", f"{mlp}.down_proj", width, middle, bias=config.mlp_bias)
    build.whole("final_norm", "model.norm.weight", (width,))
    if not config.tied:
        build.table("lm_head", "lm_head.weight", sharding.vocab, width)
    return build.layout(
        vocab_size=config.vocab_size,
        hidden_size=width,
        num_layers=config.num_layers,
        num_kv_heads=sharding.kv_heads.size,
        head_size=size,
    )


def program(plan: ProgramPlan) -> tuple:
    from . import blocks
    from .parallel import Ranks

    config = read_config(plan.model.facts)
    sharding = _sharding(config, plan.model.world_size)
    inputs = program_inputs(plan)
    outputs = program_outputs(plan, config.vocab_size)
    heads, kv_heads, size = sharding.heads.size, sharding.kv_heads.size, config.head_size
    scale = size**-0.5

    def forward(params: dict, states: dict, inputs: dict) -> tuple[dict, dict]:
        step, ranks = Step(plan, inputs), Ranks(plan, inputs)
        written = {}
        hidden = ranks.embed(params["embed"], step.token_ids)
        cos, sin = blocks.rope_tables(step.positions, config.inverse_frequencies, hidden.dtype)

        def linear(x, name):
            return blocks.linear(ranks.every_token(x), params[f"{name}.weight"], params.get(f"{name}.bias"))

        def row_linear(x, name):
            return ranks.row_linear(x, params[f"{name}.weight"], params.get(f"{name}.bias"))

        for index in range(config.num_layers):
            layer = f"layers.{index}"
            x = blocks.rms_norm(hidden, params[f"{layer}.attention_norm"], config.rms_norm_eps)
            qkv = linear(x, f"{layer}.qkv").view(-1, heads + 2 * kv_heads, size)
            q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
            q, k = blocks.rotate(q, cos, sin), blocks.rotate(k, cos, sin)
            k_cache = blocks.kv_write(states[f"{layer}.k"], k, step.slots)
            v_cache = blocks.kv_write(states[f"{layer}.v"], v, step.slots)
            written |= {f"{layer}.k": k_cache, f"{layer}.v": v_cache}
            attended = blocks.paged_attention(q, k_cache, v_cache, step.tables, step.positions, scale)
            hidden = hidden + row_linear(attended.view(-1, heads * size), f"{layer}.out")

            x = blocks.rms_norm(hidden, params[f"{layer}.mlp_norm"], config.rms_norm_eps)
            gate, up = linear(x, f"{layer}.gate_up").chunk(2, dim=-1)
            hidden = hidden + row_linear(blocks.silu(gate) * up, f"{layer}.down")

        last = blocks.rms_norm(step.last_tokens(hidden, ranks), params["final_norm"], config.rms_norm_eps)
        logits = blocks.lm_head(last, params["embed" if config.tied else "lm_head"])
        return ranks.sample(logits, config.vocab_size, greedy=plan.model.greedy), written

    return forward, inputs, outputs
