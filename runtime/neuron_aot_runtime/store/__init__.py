"""Read side of the store: resolve a reference, read, verify.

bundle = open_bundle("./store@smollm2/demo")
for program in bundle.manifest.programs:
    path = bundle.artifact_path(program)   # its sha256 has been checked
"""

from .bundle import Bundle, open_bundle, read_manifest, read_program, read_ref, refs
from .reader import Entry, LocalReader, StoreReader
from .readers import is_remote, open_reader
from .records import FailureRecord, OriginRecord, ProgramRecord, Provenance, RefRecord, RequestRecord, parse_record
from .reference import Reference, parse_reference

__all__ = [
    "Bundle",
    "Entry",
    "FailureRecord",
    "LocalReader",
    "OriginRecord",
    "ProgramRecord",
    "Provenance",
    "RefRecord",
    "Reference",
    "RequestRecord",
    "StoreReader",
    "is_remote",
    "open_bundle",
    "open_reader",
    "parse_record",
    "parse_reference",
    "read_manifest",
    "read_program",
    "read_ref",
    "refs",
]
