"""CPU features: what LLVM names in an executable against what Linux says of the host."""

from __future__ import annotations

import pytest
from neuron_aot_runtime.device import cpu_features

#: Flags of /proc/cpuinfo on a Granite Rapids host (those of AVX-512), which LLVM calls avx10.1 too.
GRANITE_RAPIDS = [
    "sse2",
    "avx",
    "avx2",
    "avx512f",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512vl",
    "avx512ifma",
    "avx512vbmi",
    "avx512_vbmi2",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_bitalg",
    "avx512_fp16",
    "avx512_vpopcntdq",
]


@pytest.fixture
def host(monkeypatch):
    def set_flags(flags):
        monkeypatch.setattr(cpu_features, "_host_flags", lambda: frozenset(flags))

    return set_flags


def test_a_name_for_several_features_is_there_with_all_of_them(host):
    host(GRANITE_RAPIDS)
    assert cpu_features.missing_features(["sse2", "avx512f", "avx10.1", "prefer-no-gather", "xsaves"]) == []
    for flag in GRANITE_RAPIDS[3:]:
        host(set(GRANITE_RAPIDS) - {flag})
        assert cpu_features.missing_features(["sse2", "avx10.1"]) == ["avx10.1"], flag


def test_what_is_not_known_is_lacking(host):
    host(GRANITE_RAPIDS)
    assert cpu_features.missing_features(["avx9000", "avx10.2", "sse2"]) == ["avx9000", "avx10.2"]
    host(())
    assert cpu_features.host_features() == () and cpu_features.missing_features(["sse2"]) == ["sse2"]
