"""The runtime installs alone: its package and its declared dependencies, and nothing of the toolchain."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = ("torch", "jax", "neuron_aot", "transformers", "vllm")

# Run in the clean environment: import every public module outside vllm/ and say what came with them.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
import neuron_aot_runtime

names = []
for module in pkgutil.walk_packages(neuron_aot_runtime.__path__, "neuron_aot_runtime."):
    if module.name.startswith("neuron_aot_runtime.vllm") or any(p.startswith("_") for p in module.name.split(".")):
        continue
    importlib.import_module(module.name)
    names.append(module.name)
print(json.dumps({"modules": names, "loaded": sorted({name.split(".")[0] for name in sys.modules})}))
"""


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment that holds the runtime and its dependencies only."""
    root = tmp_path_factory.mktemp("alone")
    # A copy, so that building leaves nothing in the checkout and nothing of the checkout is on the path.
    source = shutil.copytree(
        ROOT / "runtime", root / "runtime", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    )
    subprocess.run([sys.executable, "-m", "venv", root / "env"], check=True)
    python = root / "env" / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", source],
        check=True, stdin=subprocess.DEVNULL, timeout=600,
    )  # fmt: skip
    return python


def run(python: Path, code: str) -> str:
    # -I: neither the working directory nor PYTHONPATH may lend it a module.
    done = subprocess.run(
        [python, "-I", "-c", code], check=False, capture_output=True, text=True, timeout=120, cwd=python.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_module_imports(clean_python):
    report = json.loads(run(clean_python, IMPORT_ALL))
    assert {"neuron_aot_runtime.contract.manifest", "neuron_aot_runtime.store"} <= set(report["modules"])
    assert not set(report["loaded"]) & set(FORBIDDEN)


def test_nothing_of_the_toolchain_is_installed(clean_python):
    code = f"import importlib.util as u; print([name for name in {FORBIDDEN} if u.find_spec(name)])"
    assert run(clean_python, code).strip() == "[]"


def test_each_module_imports_in_a_fresh_interpreter(clean_python):
    """An import that only works after another one hides a missing import or a cycle."""
    modules = json.loads(run(clean_python, IMPORT_ALL))["modules"]
    code = "import subprocess, sys\n" + "\n".join(
        f"subprocess.run([sys.executable, '-I', '-c', 'import {name}'], check=True)" for name in modules
    )
    run(clean_python, code)


def test_the_plugin_does_nothing_without_a_bundle(clean_python):
    """vLLM probes every installed plugin; ours must be silent and light when no bundle is named."""
    code = (
        "from neuron_aot_runtime.vllm.plugin import platform_plugin as p; import sys; print(p(), 'vllm' in sys.modules)"
    )
    assert run(clean_python, code).split() == ["None", "False"]
