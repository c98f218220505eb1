"""The Neuron code generator: ``neuronx-cc`` on any x86 host, one process and one working folder per program."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from functools import cache
from pathlib import Path

from neuron_aot_runtime.contract.errors import CompileError, IntegrityError
from neuron_aot_runtime.device.neff import read_neff

from ..settings import TIMEOUT, read_settings
from ..targets import CompileOptions, neuron_target
from .base import CompilerError
from .compiler_process import Ended, run_compiler
from .flags import LNC, merge_flags
from .ncc_errors import explain, find_code, says_out_of_memory

PROGRAM = "neuronx-cc"
ABSENT = "absent"
_INPUT, _OUTPUT, _LOG = "model.hlo_module.pb", "model.neff", "compiler.log"
_ANSWER_TIMEOUT_SECONDS = 120


class NeuronxCcGenerator:
    """See ``CodeGenerator``. Raises UsageError for flags or a logical core size that the target cannot have."""

    name = PROGRAM
    artifact_format = "neff"

    def __init__(self, target: str, options: CompileOptions) -> None:
        self.target = target
        self._timeout = options.timeout
        self._flags = merge_flags(
            neuron_target(target), recipe=options.flags, environment=read_settings().cc_flags, lnc=options.lnc
        )
        (self.core_size,) = map(int, self._flags.values[LNC])

    def identity(self) -> dict[str, str]:
        return {
            "compiler": PROGRAM,
            "version": compiler_version(),
            "flags": self._flags.identity(),
            "logical_core_size": str(self.core_size),
        }

    def requires(self) -> dict[str, str]:
        return {"neuron_target": self.target, "logical_core_size": str(self.core_size)}

    def check(self) -> None:
        find_compiler()

    def command(self, program: str = PROGRAM) -> list[str]:
        """The command line, with file names relative to the working folder."""
        return [
            program, "compile", _INPUT, "--framework", "XLA", "--target", self.target, *self._flags.arguments(),
            "--logfile", _LOG, "--output", _OUTPUT,
        ]  # fmt: skip

    def generate(self, hlo: bytes, artifact: Path) -> dict[str, Path]:
        program = find_compiler()
        # Beside the artifact: on the store's file system, and removed with it.
        folder = artifact.parent / "compile"
        folder.mkdir()
        (folder / _INPUT).write_bytes(hlo)
        said = folder / "output.txt"
        ended = run_compiler(self.command(program), folder=folder, output=said, timeout=self._timeout)
        log = artifact.with_name("log")
        log.write_text(self._log(ended, [said, folder / _LOG]))
        if ended.code != 0 or ended.timed_out:
            raise _failure(ended, log, self._timeout)
        self._check(folder / _OUTPUT, log)
        os.rename(folder / _OUTPUT, artifact)
        os.rename(folder / _INPUT, artifact.with_name("hlo"))
        return {"hlo": artifact.with_name("hlo"), "log": log}

    def _log(self, ended: Ended, files: list[Path]) -> str:
        parts = [
            f"$ {shlex.join(self.command())}",
            f"# {PROGRAM} {compiler_version()}, exit {ended.code}, {ended.seconds:.1f} s, peak memory {ended.peak_mb} MB",
        ]
        return "\n".join([*parts, *(path.read_text(errors="replace") for path in files if path.exists())])

    def _check(self, neff: Path, log: Path) -> None:
        """Raises CompilerError unless the compiler that said "done" wrote a whole NEFF for this core size."""
        found = "no file" if not neff.is_file() else None
        if found is None:
            try:
                header = read_neff(neff).header
                if header.core_size not in (0, self.core_size):
                    found = f"a NEFF for a logical core size of {header.core_size}, not {self.core_size}"
            except IntegrityError as error:
                found = f"{error.found} (wanted {error.wanted})"
        if found is not None:
            raise CompilerError(
                f"{PROGRAM} reported success but did not write a whole NEFF; nothing was stored",
                found=found,
                next_command="run the same command again; if it persists, report it to the compiler's makers",
            ).about(log=log)


def find_compiler() -> str:
    """The path of neuronx-cc. Raises CompileError saying how to get it."""
    path = shutil.which(PROGRAM)
    if path is None:
        raise CompileError(
            f"{PROGRAM} is not on the PATH",
            wanted="the Neuron compiler: a Neuron target's programs are made by it, on any x86 Linux host",
            next_command="install neuronx-cc from the Neuron SDK's package index and put its environment's bin on PATH",
        )
    return path


def compiler_version() -> str:
    """What ``neuronx-cc --version`` says, or ``absent``. Raises CompileError when it does not say a version.

    Starting it takes seconds, so the answer is kept per file (path, time, size) in the user's cache folder.
    """
    path = shutil.which(PROGRAM)
    if path is None:
        return ABSENT
    status = os.stat(path)
    return _version_of(os.path.realpath(path), f"{os.path.realpath(path)}:{status.st_mtime_ns}:{status.st_size}")


def ask_compiler(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What the compiler at ``path`` answers in text, and its exit code. Raises CompileError when it cannot be started."""
    try:
        return subprocess.run(
            [path, *arguments],
            capture_output=True,
            text=True,
            timeout=_ANSWER_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{PROGRAM} {' '.join(arguments)} cannot be asked", found=str(error)) from error


@cache
def _version_of(path: str, key: str) -> str:
    remembered = _cache_file()
    try:
        known = json.loads(remembered.read_text())
        if isinstance(known.get(key), str):
            return known[key]
    except (OSError, ValueError, AttributeError):
        known = {}
    said = ask_compiler(path, "--version")
    match = re.search(r"version\s+(\d[\w.+-]*)", said.stdout + said.stderr) or re.search(
        r"(\d+\.\d[\w.+-]*)", said.stdout
    )
    if said.returncode != 0 or match is None:
        raise CompileError(
            f"{PROGRAM} does not say its version",
            wanted="exit code 0 and a version",
            found=f"exit code {said.returncode}: {(said.stdout + said.stderr).strip()[:300]}",
            next_command=f"{PROGRAM} --version",
        )
    _remember(remembered, known | {key: match[1]})
    return match[1]


def _cache_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "neuron-aot", "compiler-versions.json")


def _remember(path: Path, known: dict) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(known))
        os.replace(beside, path)
    except OSError:
        pass  # no home, or a read-only one: it is asked again next time


def _failure(ended: Ended, log: Path, timeout: int | None) -> CompilerError:
    output = log.read_text()
    peak = f"its peak memory was {ended.peak_mb} MB"
    if ended.timed_out:
        return CompilerError(
            f"{PROGRAM} took longer than {timeout} s and was stopped; {peak}",
            next_command=f"raise {TIMEOUT}, take a smaller bucket, or --optlevel 1",
        ).about(log=log)
    if ended.code < 0 and -ended.code != signal.SIGKILL:
        return CompilerError(
            f"{PROGRAM} was killed by {signal.Signals(-ended.code).name}; {peak}",
            next_command="run the same command again; nothing is remembered about this program",
        ).about(log=log, transient=True)
    if ended.code < 0 or says_out_of_memory(output):
        how = "was killed by SIGKILL, which usually means that the host ran out of memory"
        return CompilerError(
            f"{PROGRAM} {how if ended.code < 0 else 'ran out of host memory'}; {peak}",
            next_command="run the same command again with fewer --jobs, or on a host with more memory",
        ).about(log=log, transient=True)
    code = find_code(output)
    if code is None:
        lines = [line for line in output.splitlines()[2:] if line.strip()][-5:]
        return CompilerError(
            f"{PROGRAM} failed with exit code {ended.code} and no error code; {peak}",
            details=lines,
            next_command="run the same command again; if it persists, report the log to the compiler's makers",
        ).about(log=log)
    meaning, change = explain(code)
    (line, *_) = [line.strip() for line in output.splitlines() if code in line]
    return CompilerError(f"{code}: {meaning}", found=line[:300], next_command=change).about(
        log=log, code=code, remember=True
    )
