"""Which requests a bundle's programs can serve; for the frontend, which refuses, and the runner, which chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams


def more_than_argmax(params: SamplingParams) -> str | None:
    """The first parameter for which the next token is not simply the largest logit, as ``name=value``, or None."""
    wanted = (
        ("temperature", params.temperature, 0),
        ("logprobs", params.logprobs, None),
        ("logprob_token_ids", params.logprob_token_ids, None),
        ("presence_penalty", params.presence_penalty, 0),
        ("frequency_penalty", params.frequency_penalty, 0),
        ("repetition_penalty", params.repetition_penalty, 1),
        ("bad_words", params.bad_words or None, None),
        ("allowed_token_ids", params.allowed_token_ids, None),
        ("logit_bias", params.logit_bias or None, None),
        ("min_tokens", params.min_tokens, 0),
        ("structured_outputs", params.structured_outputs, None),
        ("thinking_token_budget", params.thinking_token_budget, None),
    )
    for name, value, neutral in wanted:
        if value != neutral:
            return f"{name}={value!r}" if name != "structured_outputs" else "structured_outputs (a response format)"
    return None


def refusal(params: object, *, prompt_kind: str | None, greedy: bool) -> tuple[str, str] | None:
    """Why a request cannot be served: (message, the parameter at fault), or None.

    ``params`` are vLLM's SamplingParams or PoolingParams, ``prompt_kind`` vLLM's type of the prompt, ``greedy``
    whether the bundle's programs end in an argmax.
    """
    if not hasattr(params, "temperature"):
        return "this server generates text; pooling requests are not supported", "task"
    if prompt_kind == "embeds":
        return "prompt embeddings are not supported: the programs take token ids", "prompt_embeds"
    if prompt_kind == "multimodal":
        return "multimodal prompts are not supported: the programs take token ids", "multi_modal_data"
    if params.prompt_logprobs is not None:
        return (
            "prompt_logprobs is not supported: the programs compute the logits of a prompt's last token only",
            "prompt_logprobs",
        )
    if greedy and (obstacle := more_than_argmax(params)) is not None:
        message = (
            f"Only support greedy sampling: the bundle was compiled with on_device_sampling_config, so its programs "
            f"return the best token and no logits, but the request has {obstacle}. Send temperature=0 and leave the "
            f"parameter out, or serve a bundle compiled without on_device_sampling_config"
        )
        return message, obstacle.partition("=")[0].partition(" ")[0]
    return None
