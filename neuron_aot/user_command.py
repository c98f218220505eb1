"""A user's own ``vllm serve`` command, read without vLLM."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from neuron_aot_runtime.contract.errors import ConfigError, UsageError
from neuron_aot_runtime.contract.fields import ENGINE, nearest

from .serve_flags import ALIASES, BOOLEAN, HUMAN, MULTIPLE, OPTIONAL, SERVER

_STARTS = (
    ("vllm", "serve"),
    ("-m", "vllm.entrypoints.openai.api_server"),
    ("-m", "vllm.entrypoints.cli.main", "serve"),
)
_KNOWN = BOOLEAN | MULTIPLE | OPTIONAL | SERVER | set(ENGINE)
_MULTIPLIERS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DTYPES = {"float": "float32", "half": "float16"}


@dataclass(frozen=True, kw_only=True)
class UserCommand:
    """``engine``: vLLM's engine arguments that the command sets, less ``model`` and ``additional_config``."""

    model: str
    revision: str | None
    engine: Mapping[str, Any]
    additional_config: Mapping[str, Any]


def parse_command(words: Sequence[str]) -> UserCommand:
    """Read a command: ``vllm serve MODEL --…``, or the same server started with ``python -m``.

    What a program does not depend on is accepted and, where it is no engine argument, dropped. Raises ConfigError for
    a flag that vLLM does not have, UsageError for what is no such command.
    """
    words = _arguments(words)
    values = _flags(words)
    if "config" in values:
        values = _flags(_config_file(values["config"])) | values
    model = values.pop("model", None)
    if not isinstance(model, str):
        raise UsageError("the command names no model", wanted="vllm serve MODEL …", found=" ".join(words) or "nothing")
    additional = values.pop("additional_config", None) or {}
    if not isinstance(additional, Mapping):
        raise ConfigError("--additional-config is no JSON object", found=str(additional))
    engine = {name: value for name, value in values.items() if name in ENGINE}
    revision = engine.get("revision")
    return UserCommand(
        model=model, revision=None if revision is None else str(revision), engine=engine, additional_config=additional
    )


def read_model_config(path: Path) -> dict[str, Any]:
    """The JSON object in a config.json. Raises UsageError."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no JSON object")
    return found


def find_model_config(command: UserCommand, given: Path | None = None) -> Path:
    """The served model's config.json: ``given`` (the file or its directory), a local MODEL's, or the hub's cache's.

    Nothing is downloaded. Raises UsageError when it is nowhere.
    """
    tried = [given] if given else [Path(command.model).expanduser(), *_cached(command)]
    for path in tried:
        config = path / "config.json" if path.is_dir() else path
        if config.is_file():
            return config.resolve()
    raise UsageError(
        f"the config.json of {command.model} is not on this machine",
        wanted="a local directory, or a model in the hub's cache",
        found=", ".join(map(str, tried)),
        next_command="give it with --model-config PATH; only config.json is read, no weights",
    )


def _arguments(words: Sequence[str]) -> list[str]:
    """The words behind the part that starts the server."""
    words = list(words)
    for start in _STARTS:
        for index in range(min(len(words), 12)):
            first = words[index].rpartition("/")[2] if start[0] == "vllm" else words[index]
            if (first, *words[index + 1 : index + len(start)]) == start:
                return words[index + len(start) :]
    raise UsageError(
        "this is no command that serves a model", wanted="vllm serve MODEL …", found=" ".join(words[:6]) or "nothing"
    )


def _flags(words: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    unknown = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if values.setdefault("model", word) != word:
                unknown.append(f"{word}: a word that belongs to no flag")
            continue
        if re.fullmatch(r"-O=?\w+", word):
            word = f"-O={word.removeprefix('-O').removeprefix('=')}"
        flag, equals, text = word.partition("=")
        name, negated, keys = _name(flag)
        if name is None:
            close = nearest(flag.lstrip("-"), _KNOWN)
            unknown.append(
                f"{flag}: vLLM has no such flag" + (f"; did you mean --{close.replace('_', '-')}?" if close else "")
            )
            while rest and not rest[0].startswith("-"):
                rest.pop(0)
            continue
        if name in BOOLEAN:
            values[name] = not negated
            continue
        if equals:
            taken = [text]
        else:
            count = len(rest) if name in MULTIPLE else 1
            taken = []
            while rest and len(taken) < count and (not rest[0].startswith("-") or _is_number(rest[0])):
                taken.append(rest.pop(0))
        if not taken and name not in OPTIONAL:
            raise ConfigError(f"{flag} wants a value", next_command=f"give {flag} a value")
        _put(values, name, keys, taken if name in MULTIPLE else _value(name, taken[0]) if taken else True)
    if unknown:
        raise ConfigError("the command has flags that vLLM refuses", details=unknown, next_command="correct them")
    return values


def _name(flag: str) -> tuple[str | None, bool, list[str]]:
    """(argument, whether negated, keys into its JSON value) of a flag; (None, …) for one that vLLM does not have."""
    if flag in ALIASES:
        return ALIASES[flag], False, []
    if not flag.startswith("--"):
        return None, False, []
    name, *keys = flag.removeprefix("--").split(".")
    name = name.replace("-", "_")
    if name in _KNOWN and (not keys or name in ENGINE):
        return name, False, keys
    if name.startswith("no_") and name.removeprefix("no_") in BOOLEAN:
        return name.removeprefix("no_"), True, []
    return None, False, []


def _put(values: dict[str, Any], name: str, keys: list[str], value: Any) -> None:
    """Set an argument, or one key inside of it: ``--additional-config.neuron_config.num_seqs_buckets '[1, 2]'``."""
    if not keys:
        both = isinstance(values.get(name), dict) and isinstance(value, dict)
        values[name] = values[name] | value if both else value
        return
    place = values[name] = dict(values[name]) if isinstance(values.get(name), dict) else {}
    for key in keys[:-1]:
        place = place.setdefault(key, {})
    place[keys[-1]] = value


def _value(name: str, text: str) -> Any:
    if name in SERVER or name in ("model", "revision"):
        return text
    if name == "dtype":
        return None if text == "auto" else _DTYPES.get(text, text)
    if name == "max_model_len" and text in ("auto", "-1"):
        return None
    if name in HUMAN and (match := re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text)):
        return int(float(match[1]) * _MULTIPLIERS[match[2]])
    if text in ("None", "none", ""):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-\d+(\.\d+)?", word) is not None


def _config_file(path: str) -> list[str]:
    """The flags of vLLM's ``--config`` file, a mapping of flags to values."""
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the file that --config names: {error}") from error
    if not isinstance(document, Mapping):
        raise UsageError(f"{path} holds no mapping of flags to values")
    words = []
    for name, value in document.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *map(str, value)]
        elif value is not None:
            words.append(f"--{name}={json.dumps(value) if isinstance(value, Mapping) else value}")
    return words


def _cached(command: UserCommand) -> list[Path]:
    """Where the hub's cache would have the model."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = hub / ("models--" + command.model.replace("/", "--"))
    revision = command.revision or "main"
    try:
        revision = (folder / "refs" / revision).read_text().strip()
    except OSError:
        pass  # a commit, or not there at all
    return [folder / "snapshots" / revision / "config.json"]
