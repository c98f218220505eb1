"""Fixtures that several kinds of tests share, and the order in which tests run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Nothing in the tests may reach for a model hub; set before transformers or vLLM is imported anywhere.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # silences its warning about forks
os.environ["VLLM_NO_USAGE_STATS"] = "1"

ROOT = Path(__file__).resolve().parents[1]


# Files go to workers whole, in this order, so that no long one is left for the end.
LONGEST = ("test_smollm2", "test_serving", "test_tensor_parallel", "test_neuron", "test_data_parallel")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything under tests/e2e is e2e, and runs last: the quick tests speak first."""

    def rank(item: pytest.Item) -> int:
        if item.get_closest_marker("e2e") is None:
            return 0
        return 1 + (LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))

    for item in items:
        if "e2e" in item.path.relative_to(ROOT).parts:
            item.add_marker(pytest.mark.e2e)
    items.sort(key=rank)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The SmolLM2-135M-Instruct checkpoint; made once and kept in models/."""
    from recipes.checkpoints import smollm2_checkpoint

    directory = ROOT / "models" / "SmolLM2-135M-Instruct"
    smollm2_checkpoint(directory)
    return directory


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """``tiny("gqa", dtype=…, num_hidden_layers=…)``: a tiny random checkpoint, made once a session; see tiny.py."""
    from tiny import tiny_checkpoint

    root = tmp_path_factory.mktemp("tiny")

    def make(variant: str = "gqa", **options) -> Path:
        name = "-".join([variant, *(f"{key}={value}" for key, value in sorted(options.items()))])
        return tiny_checkpoint(root / name.replace("/", "_"), variant, **options)

    return make


@pytest.fixture
def simulator(tmp_path, monkeypatch):
    """The simulator of the Neuron compiler and runtime, found by this process and its children; see simulator/README.md."""
    from simulator.install import HERE, Simulator

    (tmp_path / "neuron-sdk").mkdir()
    made = Simulator(tmp_path / "neuron-sdk")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("NEURON_CC_FLAGS", "NEURON_PLATFORM_TARGET_OVERRIDE", "NEURON_LIBTORCH_COMPILATION_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(HERE / "python")
    return made
