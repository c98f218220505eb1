"""The toolchain's environment variables: the one place where they are read, under the names users know.

NEURON_CC_FLAGS                           extra compiler flags, merged with the recipe's
NEURON_PLATFORM_TARGET_OVERRIDE           the target, before the recipe's; --target comes before both
NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS  worker processes, unless --jobs says otherwise
NEURON_LIBTORCH_COMPILATION_TIMEOUT       seconds for one program's compile
VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION    largest share of the memory budget for the KV cache
VLLM_NEURON_MIN_KV_BUDGET_GIB             smallest KV cache worth serving
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from neuron_aot_runtime.contract.errors import UsageError

CC_FLAGS = "NEURON_CC_FLAGS"
TARGET = "NEURON_PLATFORM_TARGET_OVERRIDE"
WORKERS = "NEURON_LIBTORCH_PARALLEL_COMPILE_WORKERS"
TIMEOUT = "NEURON_LIBTORCH_COMPILATION_TIMEOUT"
KV_CAP = "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION"
MIN_KV = "VLLM_NEURON_MIN_KV_BUDGET_GIB"


@dataclass(frozen=True, kw_only=True)
class ToolchainSettings:
    """The settings of this process; None where a variable is not set. ``timeout`` in seconds."""

    cc_flags: str
    target: str | None
    workers: int | None
    timeout: int | None
    kv_cap: Fraction
    min_kv_gib: Fraction


def read_settings(environ: Mapping[str, str] = os.environ) -> ToolchainSettings:
    """Raises UsageError naming the variable whose value is no number in its range."""
    kv_cap = _number(environ, KV_CAP, "0.30")
    if not 0 < kv_cap <= 1:
        raise UsageError(f"{KV_CAP} is a share of the budget", wanted="above 0, at most 1", found=environ[KV_CAP])
    return ToolchainSettings(
        cc_flags=environ.get(CC_FLAGS, ""),
        target=environ.get(TARGET) or None,
        workers=_count(environ, WORKERS),
        timeout=_count(environ, TIMEOUT),
        kv_cap=kv_cap,
        min_kv_gib=_number(environ, MIN_KV, "1.0"),
    )


def _number(environ: Mapping[str, str], name: str, default: str) -> Fraction:
    text = environ.get(name) or default
    try:
        value = Fraction(text)  # exact: a budget must not depend on a binary rounding of 0.3
    except (ValueError, ZeroDivisionError):
        value = Fraction(-1)
    if value < 0:
        raise UsageError(f"{name} is not a number", wanted="a decimal number such as " + default, found=text)
    return value


def _count(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"{name} is not a whole number", wanted="1 or more", found=text)
    return int(text)
