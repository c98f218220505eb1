"""What is inside an artifact: a NEFF's header and contents, an executable's header, a module's statistics."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from neuron_aot_runtime.contract.errors import IntegrityError, NotFoundError, UsageError
from neuron_aot_runtime.device import xla_artifact
from neuron_aot_runtime.device.neff import HEADER_SIZE, read_neff
from neuron_aot_runtime.store import Bundle, ProgramRecord, open_bundle, read_program

from .lower import hlo_proto


def open_program(reference: str) -> tuple[Bundle, str, ProgramRecord]:
    """``BUNDLE#PROGRAM`` -> (bundle, program name, its record). Raises UsageError, StoreError."""
    location, _, name = reference.partition("#")
    bundle = open_bundle(location)
    names = [program.name for program in bundle.manifest.programs]
    if name not in names:
        raise UsageError(
            f"the bundle has no program {name!r}", wanted=", ".join(names), found=name or "no name",
            next_command=f"neuron-aot inspect {location}#{names[0]}",
        )  # fmt: skip
    return bundle, name, program_record(bundle, name)


def program_record(bundle: Bundle, name: str) -> ProgramRecord:
    """The record of one program. Raises NotFoundError, IntegrityError."""
    key = bundle.manifest.program(name).program_key
    record = read_program(bundle.reader, key)
    if record is None:
        raise NotFoundError(f"{name} has no record in the store", wanted=f"programs/{key}.json")
    return record


def attachment(bundle: Bundle, record: ProgramRecord, name: str) -> bytes:
    """A further blob of a program (``hlo``, ``log``), verified. Raises NotFoundError, IntegrityError."""
    blob = record.attachments.get(name)
    if blob is None:
        raise NotFoundError(
            f"the {name} of this program was not kept: only Neuron programs keep it",
            next_command="neuron-aot compile RECIPE --target trn2",
        )
    return bundle.verified_blob(blob, f"the {name} kept with program {record.program_key[:16]}").read_bytes()


def inspect_file(path: Path) -> dict:
    """A NEFF, an ``xla-cpu`` artifact or an HLO module, recognised by content. Raises UsageError, IntegrityError."""
    try:
        with open(path, "rb") as file:
            head = file.read(len(xla_artifact.MAGIC))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", wanted="an artifact file, or BUNDLE#PROGRAM", found=str(path)
        ) from None
    if head == xla_artifact.MAGIC:
        header, payload = xla_artifact.unpack(path)
        return {"format": "xla-cpu", **header, "payload_bytes": len(payload)}
    if int.from_bytes(_at(path, 8), "little") == HEADER_SIZE:
        return {"format": "neff"} | inspect_neff(path)
    try:
        return {"format": "hlo"} | inspect_hlo(path.read_bytes())
    except ValueError:
        raise IntegrityError(
            f"{path.name} is none of the formats that neuron-aot makes",
            wanted="a NEFF, an xla-cpu artifact or an HloModuleProto",
            found=f"something that starts with {head!r}",
        ) from None


def inspect_neff(path: Path) -> dict:
    """Header fields and table of contents."""
    neff = read_neff(path)
    header = neff.header
    return {
        "package_version": header.package_version,
        "neff_version": header.version,
        "built_by": header.build_version,
        "name": header.name,
        "logical_core_size": header.core_size,
        "cores": header.num_cores,
        "requested_cores": header.requested_cores,
        "feature_bits": hex(header.feature_bits),
        "uuid": header.uuid.hex(),
        "hash": header.hash.hex(),
        "data_bytes": header.data_size,
        "compressed": neff.compressed,
        "subgraphs": list(neff.subgraphs),
        "members": [{"name": name, "bytes": size} for name, size in neff.members],
    }


def inspect_hlo(hlo: bytes) -> dict:
    """Operators, dots, bytes and aliases of a module. Raises ValueError for bytes that are not one."""
    module = hlo_proto.parse_module(hlo)
    entry = hlo_proto.entry_computation(module)
    by_id = {item.id: item for item in entry.instructions}
    operators = Counter(item.opcode for computation in module.computations for item in computation.instructions)
    dots = Counter(
        " x ".join(_type(by_id[number].shape) for number in item.operand_ids) + f" -> {_type(item.shape)}"
        for item in entry.instructions
        if item.opcode == "dot"
    )
    parameters = [item.shape for item in entry.instructions if item.opcode == "parameter"]
    results = hlo_proto.leaf_shapes(by_id[entry.root_id].shape)
    return {
        "bytes": len(hlo),
        "instructions": operators.total(),
        "operators": dict(operators.most_common()),
        "dots": dict(dots.most_common()),
        "parameters": len(parameters),
        "parameter_bytes": sum(map(_nbytes, parameters)),
        "results": len(results),
        "result_bytes": sum(map(_nbytes, results)),
        "aliases": len(module.input_output_alias.entries),
    }


def _at(path: Path, offset: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(8)


def _type(shape) -> str:
    return f"{hlo_proto.element_type(shape)}{list(shape.dimensions)}"


def _nbytes(shape) -> int:
    return math.prod(shape.dimensions) * hlo_proto.BITS.get(hlo_proto.element_type(shape), 8) // 8
