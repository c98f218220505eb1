"""CPU features that compiled code may use, under LLVM's names, and whether this host has them.

Sources: LLVM's ``X86TargetParser.def`` for the names, Linux' ``cpufeatures.h`` for those in /proc/cpuinfo.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

# LLVM's name -> Linux' name. What the code generator may emit; not tuning hints, system or enclave instructions.
_LINUX_NAMES = {
    "64bit": "lm", "adx": "adx", "aes": "aes", "avx": "avx", "avx2": "avx2", "avxifma": "avx_ifma",
    "avxneconvert": "avx_ne_convert", "avxvnni": "avx_vnni", "avxvnniint8": "avx_vnni_int8",
    "avxvnniint16": "avx_vnni_int16", "bmi": "bmi1", "bmi2": "bmi2", "clflushopt": "clflushopt", "clwb": "clwb",
    "cmov": "cmov", "crc32": "sse4_2", "cx16": "cx16", "cx8": "cx8", "f16c": "f16c", "fma": "fma", "fxsr": "fxsr",
    "gfni": "gfni", "lzcnt": "abm", "mmx": "mmx", "movbe": "movbe", "movdir64b": "movdir64b", "movdiri": "movdiri",
    "pclmul": "pclmulqdq", "popcnt": "popcnt", "prfchw": "3dnowprefetch", "rdrnd": "rdrand", "rdseed": "rdseed",
    "sahf": "lahf_lm", "sha": "sha_ni", "sha512": "sha512", "sm3": "sm3", "sm4": "sm4", "sse": "sse", "sse2": "sse2",
    "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "sse4a": "sse4a", "ssse3": "ssse3", "tbm": "tbm",
    "vaes": "vaes", "vpclmulqdq": "vpclmulqdq", "xop": "xop", "fma4": "fma4", "xsave": "xsave", "xsavec": "xsavec",
    "xsaveopt": "xsaveopt",
    "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512cd": "avx512cd", "avx512dq": "avx512dq",
    "avx512vl": "avx512vl", "avx512ifma": "avx512ifma", "avx512vbmi": "avx512vbmi", "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "avx512bitalg": "avx512_bitalg",
    "avx512fp16": "avx512_fp16", "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512vp2intersect": "avx512_vp2intersect",
    "amx-tile": "amx_tile", "amx-bf16": "amx_bf16", "amx-int8": "amx_int8", "amx-fp16": "amx_fp16",
    "amx-complex": "amx_complex",
}  # fmt: skip
# Names for instructions that others name already, and that Linux does not list: Intel's AVX10.1 (architecture
# specification 355989) is the AVX-512 of Granite Rapids under one version number.
_SETS = {
    "avx10.1": {
        "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi", "avx512vbmi2",
        "avx512vnni", "avx512bf16", "avx512bitalg", "avx512fp16", "avx512vpopcntdq",
    },
}  # fmt: skip
_NOT_EMITTED = frozenset({
    "cldemote", "clzero", "enqcmd", "fsgsbase", "hreset", "invpcid", "kl", "lwp", "mwaitx", "pconfig", "pku",
    "prefetchi", "ptwrite", "rdpid", "rdpru", "rtm", "serialize", "sgx", "shstk", "tsxldtrk", "uintr", "usermsr",
    "waitpkg", "wbnoinvd", "widekl", "xsaves",
})  # fmt: skip
_TUNING = ("prefer-", "fast-", "slow-")


def host_features() -> tuple[str, ...]:
    """The features of this host that generated code may use, sorted; empty where there is no /proc/cpuinfo."""
    flags = _host_flags()
    return tuple(sorted(name for name, linux in _LINUX_NAMES.items() if linux in flags))


def missing_features(needed: Iterable[str]) -> list[str]:
    """Those of ``needed`` that this host lacks; a name that is not known counts as lacking."""
    present = set(host_features())
    present |= _NOT_EMITTED | {name for name, members in _SETS.items() if members <= present}
    return [name for name in needed if name not in present and not name.startswith(_TUNING)]


@cache
def _host_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
