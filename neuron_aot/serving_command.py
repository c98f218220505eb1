"""The command and environment that serve a bundle through vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from neuron_aot_runtime.contract.errors import UsageError
from neuron_aot_runtime.store import Bundle, read_ref, refs

_PLUGIN = "neuron_aot"


def server_command(bundle: Bundle, *, model: str | None, extra: Sequence[str]) -> list[str]:
    """``python -m vllm.entrypoints.openai.api_server`` with the bundle's engine arguments, then ``extra``.

    Without the bundle's neuron_config: the plugin takes it from the bundle. Written out it would be the user's own
    choice, and break a rule beside a limit given in ``extra``, where the programs that are missing are to be told.
    Not ``vllm serve``: the script of vLLM's cpu wheel looks for a distribution named vllm and dies (vLLM 0.32).
    Raises UsageError when the checkpoint is not known or not there.
    """
    directory = model or _model_of_ref(bundle)
    again = f"neuron-aot serve {bundle.reference} --model DIRECTORY"
    if directory is None:
        raise UsageError("no ref to this bundle says where its checkpoint is", next_command=again)
    if not (Path(directory) / "config.json").is_file():
        raise UsageError(f"there is no checkpoint at {directory}", wanted="a config.json there", next_command=again)
    command = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", directory]
    for name, value in bundle.manifest.serving.engine.items():
        command += _argument(name, value)
    return [*command, *extra]


def server_environment(bundle: Bundle, environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` with the bundle named, and without what would keep vLLM from the plugin."""
    made = dict(environment) | {"NEURON_COMPILED_ARTIFACTS": str(bundle.reference)}
    made.pop("VLLM_TARGET_DEVICE", None)  # =cpu selects vLLM's own platform over every plugin
    allowed = made.get("VLLM_PLUGINS")
    if allowed and _PLUGIN not in allowed.split(","):
        made["VLLM_PLUGINS"] = f"{allowed},{_PLUGIN}"
    return made


def _model_of_ref(bundle: Bundle) -> str | None:
    """Where the recipe found the model, as the ref remembers it: this one, or any that leads to the bundle."""
    if bundle.ref is not None:
        return bundle.ref.model
    records = (read_ref(bundle.reader, name) for name in refs(bundle.reader))
    return next((record.model for record in records if record.bundle == bundle.bundle_id and record.model), None)


def _argument(name: str, value) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag.removeprefix("--")]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [flag, *value]
    return [flag, json.dumps(value) if isinstance(value, (list, dict)) else str(value)]
