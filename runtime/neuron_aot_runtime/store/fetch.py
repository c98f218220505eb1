"""Fetching a bundle of a remote store in a process of its own.

vLLM's frontend resolves a bundle and then forks its engine. A network client has threads, which a fork does not
copy but whose locks it does. So the process that will fork starts this module, and reads only the cache itself.

    python -m neuron_aot_runtime.store.fetch REFERENCE [DIGEST …]   one line of JSON on stdout
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from ..contract.errors import NeuronAotError, StorageFaultError, error_from_dict
from ..settings import read_store_settings
from .bundle import Bundle, open_bundle
from .cache import CachedReader, default_cache
from .readers import is_remote
from .reference import Reference, parse_reference

_STREAMS = 8


def fetch_bundle(reference: str) -> Bundle:
    """``open_bundle``, with all artifacts on this host and no client left in this process.

    Raises what ``open_bundle`` and ``Bundle.artifact_path`` raise.
    """
    parsed = parse_reference(reference)
    if not is_remote(parsed.store):
        return open_bundle(parsed)
    cache = default_cache()
    if read_store_settings().offline:
        return open_bundle(parsed, reader=CachedReader(parsed.store, cache, None))
    pinned = _run(reference)["bundle"]

    def refetch(digest: str) -> None:
        _run(str(Reference(parsed.store, pinned)), digest)

    return open_bundle(parsed, reader=CachedReader(parsed.store, cache, None, refetch))


def fetch_artifacts(bundle: Bundle, digests: set[str] | None = None) -> None:
    """Bring the bundle's artifacts (all, or those of ``digests``) to this host, several at a time, and verify them."""
    programs = {program.artifact.digest: program for program in bundle.manifest.programs}
    wanted = [program for digest, program in programs.items() if digests is None or digest in digests]
    with ThreadPoolExecutor(_STREAMS) as pool:
        for _ in pool.map(bundle.artifact_path, wanted):
            pass


def _run(reference: str, *digests: str) -> dict:
    command = [sys.executable, "-m", "neuron_aot_runtime.store.fetch", reference, *digests]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=_environment(), check=False)
    try:
        answer = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise StorageFaultError(
            f"the process that fetches {reference} died", found=f"exit code {ended.returncode}, no answer"
        ) from error
    if "error" in answer:
        raise error_from_dict(answer)
    return answer


def _environment() -> dict[str, str]:
    """The fetcher finds this package where this process found it."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def main(reference: str, *digests: str) -> int:
    """The fetching process."""
    try:
        bundle = open_bundle(reference)
        fetch_artifacts(bundle, set(digests) or None)
        answer = {"bundle": bundle.bundle_id}
    except NeuronAotError as error:
        answer = error.as_dict()
    print(json.dumps(answer), flush=True)
    return answer.get("exit_code", 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
