"""A bug report about one program: its HLO, the command line, versions and the compiler's log; no weights, no paths."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from neuron_aot_runtime.contract.errors import NotFoundError, UsageError

from .inspect import attachment, inspect_hlo, open_program

_INPUT = "model.hlo_module.pb"


def reproduce(reference: str, directory: Path) -> list[str]:
    """Write what reproduces the compile of ``BUNDLE#PROGRAM`` into a new or empty directory; returns the file names.

    Raises UsageError (directory in use), NotFoundError (nothing kept), IntegrityError.
    """
    bundle, name, record = open_program(reference)
    hlo = attachment(bundle, record, "hlo")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is in use", wanted="a new or empty directory", found=str(directory))
    directory.mkdir(parents=True, exist_ok=True)
    files = {_INPUT: hlo, "command.sh": _script(record).encode(), "about.json": _about(name, record, hlo)}
    try:
        files["compiler.log"] = attachment(bundle, record, "log")
    except NotFoundError:
        pass  # a program without a log is reproduced all the same
    for file, content in files.items():
        (directory / file).write_bytes(content)
    (directory / "command.sh").chmod(0o755)
    return sorted(files)


def _script(record) -> str:
    made = record.code_generator
    words = [
        made["compiler"], "compile", _INPUT, "--framework", "XLA", "--target", record.target, *shlex.split(made["flags"]),
        "--logfile", "again.log", "--output", "model.neff",
    ]  # fmt: skip
    return f"#!/bin/sh\n# made with {made['compiler']} {made['version']}\nexec {shlex.join(words)}\n"


def _about(name: str, record, hlo: bytes) -> bytes:
    about = {
        "program": name,
        "program_key": record.program_key,
        "target": record.target,
        "code_generator": record.code_generator,
        "provenance": record.provenance.model_dump(mode="json"),
        "hlo": inspect_hlo(hlo),
    }
    return (json.dumps(about, indent=1) + "\n").encode()
