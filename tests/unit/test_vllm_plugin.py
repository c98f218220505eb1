"""Runs tests/inproc in a process of its own: vLLM chooses its platform once per process."""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "inproc" / "serving_cases.py"


def test_vllm_serves_a_bundle_on_a_fake_device():
    pytest.importorskip("vllm")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(CASES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
