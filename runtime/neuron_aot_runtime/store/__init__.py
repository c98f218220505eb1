"""Read side of the store: resolve a reference, read, verify.

bundle = open_bundle("./store@smollm2/demo")
for program in bundle.manifest.programs:
    path = bundle.artifact_path(program)   # its sha256 has been checked
"""

from .bundle import Bundle, open_bundle, read_ref, refs
from .reader import LocalReader, StoreReader
from .records import FailureRecord, ProgramRecord, Provenance, RefRecord, RequestRecord, parse_record
from .reference import Reference, parse_reference

__all__ = [
    "Bundle",
    "FailureRecord",
    "LocalReader",
    "ProgramRecord",
    "Provenance",
    "RefRecord",
    "Reference",
    "RequestRecord",
    "StoreReader",
    "open_bundle",
    "parse_record",
    "parse_reference",
    "read_ref",
    "refs",
]
