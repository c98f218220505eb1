"""Tiny Llama checkpoints with random weights: every variant of the family, small enough to compile in a second."""

from __future__ import annotations

import json
from pathlib import Path

from recipes.checkpoints import make_directory

VOCAB = 320

# Small, but nothing degenerate: grouped heads, an odd number of layers, sizes that are no multiple of 128.
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    # Wide enough that the best logit leads clearly, so greedy tokens are a meaningful check.
    "initializer_range": 0.2,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}

# What each variant changes. ``max_position_embeddings`` is small so that scaled rope is exercised within a test.
VARIANTS: dict[str, dict] = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "attention-bias": {"attention_bias": True},
    "mlp-bias": {"mlp_bias": True},
    "head-dim": {"head_dim": 24},
    "llama3-rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "linear-rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
}


def tiny_checkpoint(directory: Path, variant: str = "gqa", *, dtype: str = "float32", seed: int = 0,
                    old_spelling: bool = False, **overrides) -> Path:  # fmt: skip
    """Make one variant at ``directory``, with ``overrides`` of its config; the same arguments give the same weights.

    ``old_spelling`` writes config.json as transformers 4 did (rope_theta, rope_scaling, torch_dtype).
    """
    config = {**BASE, **VARIANTS[variant], **overrides}
    make_directory(directory, lambda made: _write(made, config, dtype, seed, old_spelling))
    return directory


def _write(directory: Path, config: dict, dtype: str, seed: int, old_spelling: bool) -> None:
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**config))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # transformers starts them at zero, where a lost bias would go unseen
                torch.nn.init.normal_(parameter, std=0.2)
            elif name.endswith("norm.weight"):
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.generation_config = GenerationConfig(bos_token_id=256, eos_token_id=257, pad_token_id=258)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    _byte_tokenizer().save_pretrained(directory)
    if old_spelling:
        _spell_as_transformers_4(directory / "config.json")


def _byte_tokenizer():
    """One token a byte, three special ones, and ChatML as the chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|pad|>"
    )
    wrapped.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return wrapped


def _spell_as_transformers_4(path: Path) -> None:
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2))
