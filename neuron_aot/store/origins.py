"""Which requests led to a bundle's programs.

Nothing leads from a program back to its requests, and a large store has too many to read them all. So each bundle keeps
the keys of its own, and a copy brings their records: a compile against the copy then finds the programs without lowering.
"""

from __future__ import annotations

from collections.abc import Container

from neuron_aot_runtime.contract.errors import NotFoundError, OfflineError
from neuron_aot_runtime.contract.layout import origin_path, request_path
from neuron_aot_runtime.store import OriginRecord, RequestRecord, StoreReader, parse_record

from .streams import parallel


def read_requests(reader: StoreReader, bundle_id: str, programs: Container[str]) -> list[RequestRecord]:
    """The records of the requests that led to the bundle's ``programs``, by key; those that are lost cost a compile the
    lowering only. Raises IntegrityError for a damaged one, and what ``reader`` raises."""
    origin = _record(reader, OriginRecord, origin_path(bundle_id))
    if origin is None:
        return []
    found = parallel(lambda key: _record(reader, RequestRecord, request_path(key)), origin.requests)
    return [
        record
        for key, record in zip(origin.requests, found, strict=True)
        if record is not None and record.request_key == key and record.program_key in programs
    ]


def _record(reader: StoreReader, schema, path: str):
    try:
        return parse_record(schema, reader.read(path), where=f"{reader.location}/{path}")
    except (NotFoundError, OfflineError):
        return None
