"""Who may import whom, and what must not be imported on a fast path; see the docstrings of both packages."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import neuron_aot_runtime
import pytest

import neuron_aot

TOOLCHAIN = Path(neuron_aot.__file__).parent
RUNTIME = Path(neuron_aot_runtime.__file__).parent

#: part -> the parts of its own distribution that it may import
TOOLCHAIN_LAYERS = {
    "cli": {
        "buckets",
        "command_recipe",
        "compiling",
        "coverage",
        "explain",
        "files",
        "inspect",
        "make",
        "pipeline",
        "plan",
        "plan_document",
        "planning",
        "preflight",
        "recipe",
        "report",
        "reproduce",
        "schedule",
        "serving_command",
        "settings",
        "store",
        "units",
        "user_command",
        "verify",
    },
    "preflight": {"codegen", "lower", "make", "pipeline", "program", "recipe", "schedule", "targets"},
    "inspect": {"lower", "store"},
    "reproduce": {"inspect"},
    "buckets": {"pipeline", "make", "estimates", "plan", "recipe", "schedule", "store"},
    "coverage": set(),
    "explain": {"coverage", "keys", "recipe", "targets", "user_command"},
    "command_recipe": {"recipe", "user_command"},
    "user_command": {"serve_flags"},
    "serve_flags": set(),
    "estimates": {"program", "store", "targets"},
    "files": set(),
    "units": set(),
    "planning": {"estimates", "files", "make", "pipeline", "plan", "recipe", "store", "targets"},
    "plan_document": {"plan", "planning"},
    "report": {"plan", "plan_document", "units"},
    "compiling": {"estimates", "make", "pipeline", "program", "schedule", "store"},  # pipeline: for its types only
    "pipeline": {"compiling", "make", "keys", "plan", "program", "recipe", "schedule", "settings", "store", "targets"},
    "make": {"codegen", "keys", "lower", "models", "program", "store", "targets"},
    "execute": {"local_ranks", "models", "program"},
    "local_ranks": set(),
    "verify": {"execute", "inspect", "keys", "make", "program", "schedule", "store", "targets"},
    "serving_command": set(),
    "keys": {"program"},
    "models": {"program"},
    "lower": {"program", "targets"},
    "codegen": {"lower", "settings", "targets"},
    "store": set(),
    "schedule": set(),
    "plan": {"program"},
    "program": set(),
    "targets": set(),
    "settings": set(),
    "recipe": {"targets"},
}
RUNTIME_LAYERS = {
    "vllm": {"store", "weights", "checkpoint", "batch", "loader", "settings", "device", "ranks", "contract"},
    "store": {"settings", "contract"},
    "weights": {"arrays", "checkpoint", "contract"},
    "checkpoint": {"contract"},
    "batch": {"contract"},
    "loader": {"contract"},
    "settings": {"contract"},
    "device": {"arrays", "contract", "ranks", "settings"},
    "ranks": {"contract", "store"},
    "arrays": set(),
    "contract": set(),
}


def imports(path: Path, package: Path) -> set[str]:
    """The absolute module names that a file imports, at any depth of its code."""
    module = [package.name, *path.relative_to(package).with_suffix("").parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module[: -node.level] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{name}.{alias.name}" for alias in node.names}
    return found


def parts(package: Path):
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        if relative.name != "__init__.py" or len(relative.parts) > 1:
            yield relative.parts[0].removesuffix(".py"), path


@pytest.mark.parametrize(("package", "layers"), [(TOOLCHAIN, TOOLCHAIN_LAYERS), (RUNTIME, RUNTIME_LAYERS)])
def test_layers(package, layers):
    wrong = []
    for part, path in parts(package):
        assert part in layers, f"{part} is new: give it a place in the layers"
        for name in imports(path, package):
            root, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if root == package.name and target in layers and target != part and target not in layers[part]:
                wrong.append(f"{path.relative_to(package)} imports {name}")
    assert not wrong


def test_the_runtime_never_imports_the_toolchain():
    assert not [
        path for _, path in parts(RUNTIME) for name in imports(path, RUNTIME) if name.split(".")[0] == "neuron_aot"
    ]


def test_the_contract_and_the_store_need_only_the_base_dependencies():
    allowed = set(sys.stdlib_module_names) | {"neuron_aot_runtime", "pydantic"}
    lazily = {
        "objects.py": {"obstore"},
        "aws.py": {"obstore", "boto3", "botocore"},
        "generic.py": {"fsspec"},
        "trust.py": {"cryptography"},
    }  # the extras s3, fsspec and trust; the next test sees to it that importing the store imports none
    for part, path in parts(RUNTIME):
        if part in ("contract", "store"):
            foreign = {name.split(".")[0] for name in imports(path, RUNTIME)} - allowed - lazily.get(path.name, set())
            assert not foreign, f"{path}: {foreign}"


@pytest.mark.parametrize(
    "module",
    [
        "neuron_aot.cli.app",
        "neuron_aot.pipeline",
        "neuron_aot.verify",
        "neuron_aot.serving_command",
        "neuron_aot.coverage",
        "neuron_aot.user_command",
        "neuron_aot.models.llama",
        "neuron_aot.lower",
        "neuron_aot.codegen.xla_cpu",
        "neuron_aot_runtime.store",
    ],
)
def test_nothing_heavy_is_imported_where_speed_counts(module):
    code = f"import {module}, sys, json; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(run.stdout)}
    assert not loaded & {"torch", "jax", "jaxlib", "transformers", "vllm", "obstore", "fsspec", "boto3"}


def test_the_command_line_starts_without_the_pipeline():
    run = subprocess.run(
        [sys.executable, "-c", "import neuron_aot.cli.app, sys; print([name in sys.modules for name in ('pydantic', 'yaml')])"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout == "[False, False]\n"
