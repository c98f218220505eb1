"""What a program costs: the multiply-adds of its layers, as a function of its bucket.

A program of ``size`` tokens (prefill) or sequences (decode) and ``context`` tokens multiplies each of its ``size`` rows
with every weight matrix (the linear term) and with ``context`` keys and values (the attention term): padding in either
direction is computed like everything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuron_aot_runtime.contract.errors import UsageError
from neuron_aot_runtime.contract.manifest import DTYPE_BYTES

from ..program import ModelLayout


@dataclass(frozen=True)
class Cost:
    """``linear``: FLOP of one row; ``attention``: FLOP of one row and one token of context.

    ``weight_bytes`` are read by every step, ``kv_bytes`` for every token of context of each sequence.
    """

    linear: float
    attention: float
    weight_bytes: float
    kv_bytes: float

    def rows(self, context):
        """FLOP of one row at ``context`` tokens (a number or an array)."""
        return self.linear + self.attention * context


@dataclass(frozen=True)
class Speed:
    """A device's sustained speed: FLOP and bytes a second."""

    flops: float
    bandwidth: float


#: Per core, half of the peak: AWS states 667 dense bfloat16 TFLOPS and 2.9 TB/s for a Trainium2 of 8 cores, 190 and
#: 0.82 for a Trainium1 or Inferentia2 of 2 (aws.amazon.com/ai/machine-learning/{trainium,inferentia}). None is measured.
#: cpu: 2 cores of an AMX Xeon read 269 MB of weights in a decode step of 25 ms; the FLOP/s are half of what a prefill does
#: there. All are assumptions about the host that will serve: --tflops and --gbytes-per-second say better.
_SPEEDS = {
    "trn1": Speed(47e12, 0.2e12),
    "inf2": Speed(47e12, 0.2e12),
    "trn2": Speed(42e12, 0.18e12),
    "cpu": Speed(1e11, 1e10),
}


def model_cost(layout: ModelLayout, model_config: Mapping[str, Any]) -> Cost:
    """The cost terms of a model, from its tensors and its number of query heads.

    The vocabulary's matrices count as bytes only: embedding is a lookup, and logits are made for one row a sequence.
    """
    matrices = [spec for spec in layout.params if len(spec.shape) == 2 and spec.shape[0] != layout.spec.vocab_size]
    cache = layout.kv_cache
    heads = model_config.get("num_attention_heads") or cache.num_kv_heads
    token_values = cache.num_layers * cache.num_kv_heads * cache.head_size
    return Cost(
        linear=2.0 * max(sum(math.prod(spec.shape) for spec in matrices), 1),
        attention=4.0 * cache.num_layers * heads * cache.head_size,
        weight_bytes=float(sum(spec.nbytes for spec in layout.params)),
        kv_bytes=2.0 * token_values * DTYPE_BYTES[cache.dtype],
    )


def device_speed(target: str, cores: int, *, tflops: float | None = None, gbytes: float | None = None) -> Speed:
    """The speed of ``cores`` cores of a target; ``tflops`` and ``gbytes`` (TFLOP/s, GB/s, all cores) override it.

    Raises UsageError for a target without figures when either is left out.
    """
    known = _SPEEDS.get(target)
    if known is None and (tflops is None or gbytes is None):
        raise UsageError(
            f"the speed of {target} is not known",
            wanted=f"one of {', '.join(sorted(_SPEEDS))}, or --tflops and --gbytes-per-second",
            next_command="give both options",
        )
    return Speed(
        flops=tflops * 1e12 if tflops is not None else known.flops * cores,
        bandwidth=gbytes * 1e9 if gbytes is not None else known.bandwidth * cores,
    )
