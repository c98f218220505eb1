"""Hugging Face transformers as the reference for greedy decoding: float32, one forward pass a sequence.

Greedy tokens are checked by teacher forcing. The reference reads prompt + our tokens in one pass and says, for each
of our tokens, how far its logit lies below the best one at that place. Zero everywhere means that the reference
would have written the very same tokens. Where two logits lie closer than ``tolerance``, either token is right: float32
sums in another order may swap them, and what follows is judged given what was actually chosen.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Difference:
    """A token that is not the reference's first choice. ``deficit``: best logit minus this token's."""

    sequence: int
    position: int
    token: int
    best: int
    deficit: float

    def __str__(self) -> str:
        return (
            f"sequence {self.sequence}, new token {self.position}: {self.token} where the reference prefers "
            f"{self.best} by {self.deficit:.2e}"
        )


@functools.lru_cache(maxsize=4)
def reference_model(checkpoint: str):
    """The transformers model of a checkpoint, float32, in evaluation mode."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="sdpa").eval()


def reference_logits(checkpoint: Path | str, prompt: Sequence[int], generated: Sequence[int]):
    """[len(generated), vocab] float32: the reference's logits at the place of each generated token."""
    import torch

    tokens = torch.tensor([[*prompt, *generated[:-1]]])
    with torch.inference_mode():
        return reference_model(str(checkpoint))(tokens, logits_to_keep=len(generated), use_cache=False).logits[0]


def differences(
    checkpoint: Path | str, prompts: Sequence[Sequence[int]], generated: Sequence[Sequence[int]]
) -> list[Difference]:
    """Every generated token that the reference would not have chosen, with how far off it is."""
    found = []
    for sequence, (prompt, tokens) in enumerate(zip(prompts, generated, strict=True)):
        for position, best, deficit in _deficits(str(checkpoint), tuple(prompt), tuple(tokens)):
            found.append(
                Difference(sequence=sequence, position=position, token=tokens[position], best=best, deficit=deficit)
            )
    return found


@functools.cache
def _deficits(checkpoint: str, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> tuple[tuple[int, int, float], ...]:
    """(position, the reference's choice, deficit) where it differs. Cached: a test serves the same prompts in several
    ways, and mostly gets the same tokens."""
    import torch

    if not tokens:
        return ()
    logits_TV = reference_logits(checkpoint, prompt, tokens)
    best_T = logits_TV.argmax(dim=-1)
    chosen_T = torch.tensor(tokens)
    deficit_T = (logits_TV.gather(1, best_T[:, None]) - logits_TV.gather(1, chosen_T[:, None]))[:, 0]
    places = (best_T != chosen_T).nonzero()[:, 0].tolist()
    return tuple((place, int(best_T[place]), float(deficit_T[place])) for place in places)


def assert_greedy(
    checkpoint: Path | str,
    prompts: Sequence[Sequence[int]],
    generated: Sequence[Sequence[int]],
    *,
    length: int | None = None,
    tolerance: float = TOLERANCE,
) -> list[Difference]:
    """Fail unless every token is the reference's choice; returns (and prints) the near ties that were accepted.

    ``length`` is how many new tokens each sequence must have.
    """
    if length is not None:
        short = [(index, len(tokens)) for index, tokens in enumerate(generated) if len(tokens) != length]
        assert not short, f"expected {length} new tokens, got (sequence, tokens): {short}"
    found = differences(checkpoint, prompts, generated)
    wrong = [difference for difference in found if difference.deficit > tolerance]
    assert not wrong, "tokens differ from transformers:\n" + "\n".join(map(str, wrong[:20]))
    for difference in found:
        print(f"accepted near tie: {difference}")
    return found


def greedy(checkpoint: Path | str, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
    """The reference's own greedy continuation, one prompt after the other. Slow: prefer ``assert_greedy``."""
    import torch

    model = reference_model(str(checkpoint))
    made = []
    for prompt in prompts:
        with torch.inference_mode():
            tokens = model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                eos_token_id=None,
            )
        made.append(tokens[0, len(prompt) :].tolist())
    return made


# 24 lengths from 3 to 900: around block (32) and bucket (128, 256, 512) borders, and beyond 512, where prefill is
# segmented.
LENGTHS = (
    3, 5, 9, 17, 31, 32, 33, 48, 64, 96, 127, 128, 129, 160, 200, 255, 256, 300, 400, 511, 512, 513, 700, 900,
)  # fmt: skip
# These begin with the same text, so prefix caching has something to find.
SHARED = (160, 200, 300, 400, 700, 900)


def reference_prompts(tokenizer, lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    """Token lists of exactly these lengths, made of running text; those in SHARED have a common beginning."""
    text = (Path(__file__).parent / "prompts.txt").read_text()
    tokens = tokenizer(text, add_special_tokens=False).input_ids
    while len(tokens) < max(lengths):
        tokens = tokens + tokens
    prompts = []
    for index, length in enumerate(lengths):
        # Every other prompt starts at its own place in the text, so no two of them share a first block.
        start = 0 if length in SHARED else (index * 61 + 17) % max(1, len(tokens) - length)
        prompts.append(tokens[start : start + length])
    return prompts
