"""A ``neuronx-cc`` for tests: its command line, its refusals, its file format; the code it makes is XLA:CPU's.

Told how to behave by the JSON file that NEURON_SIMULATOR names: {"version": …, "unlisted": [operator that it does not
list], "faults": {tag: fault}}. A tag is what the program takes: ``decode_2x8`` (rows x table width), ``prefill_16x2`` or
``ids_4``; ``*`` is any. Faults:

    slow:SECONDS   kill   terminate   oom   empty   truncated   garbage   wrong-lnc   names   unnamed   crash
    NCC_CODE (fails with it)
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import signal
import struct
import sys
import tarfile
import time
import uuid
from pathlib import Path

VERSION = "2.99.7001.0+simulator"
MEMORY_GB = {
    ("trn1", 1): 16,
    ("trn1n", 1): 16,
    ("inf2", 1): 16,
    ("trn2", 2): 24,
    ("trn2", 1): 12,
    ("trn3", 2): 36,
    ("trn3", 1): 18,
}
REFUSED_OPERATORS = ("triangular-solve", "cholesky", "fft", "sort", "while", "conditional", "call", "infeed", "outfeed")
# As the Neuron documentation's table spells them: XlaBuilder's names.
OPERATORS = """
    Abs Add Allgather Allreduce Atan2 Batchnorm Batchnormgrad Batchnorminference BitcastConvertType Broadcast
    BroadcastInDim Ceil Clamp Compare Concatenate Constant ConstantLiteral ConvertElementType Cos Customcall Div Dot
    DotGeneral DynamicUpdateSlice Eq Exp Floor Gather Ge GetTupleElement Gt Iota Le Log LogicalAnd LogicalNot Lt Max Min
    Mul Ne Neg Pad Pow Reduce Reshape Rev RngBitGenerator RngUniform Rsqrt Scatter Select SelectAndScatter
    ShiftRightLogical Sign Sin Slice Sqrt Sub Tanh Transpose Tuple
"""
KNOWN_CALLS = re.compile(r"AwsNeuron\w+|__op\$block_scaled_dot")


class Refused(Exception):
    """(code, message)"""


def main(arguments: list[str]) -> int:
    told = json.loads(Path(os.environ["NEURON_SIMULATOR"]).read_text()) if "NEURON_SIMULATOR" in os.environ else {}
    if arguments == ["--version"]:
        print(f"NeuronX Compiler version {told.get('version', VERSION)}\n\nPython version {sys.version.split()[0]}")
        return 0
    if arguments[:1] == ["list-operators"]:
        if arguments[1:] != ["--framework", "XLA"]:
            return 2
        print("\n".join(name for name in OPERATORS.split() if name not in told.get("unlisted", ())))
        return 0
    options = parse(arguments)
    try:
        return compile_(options, arguments, told)
    except Refused as refusal:
        code, message = refusal.args
        text = f"2026-01-01 ERROR [{code}] {message}\n"
        sys.stderr.write(text)
        if options.logfile:
            Path(options.logfile).write_text(text)
        return 70


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="neuronx-cc", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("compile", allow_abbrev=False)
    sub.add_argument("model")
    sub.add_argument("--framework", required=True, choices=["XLA"])
    sub.add_argument("--target", required=True, choices=sorted({name for name, _ in MEMORY_GB}))
    sub.add_argument("--model-type", default="generic", choices=["generic", "transformer", "unet-inference"])
    sub.add_argument("--auto-cast", default="matmult", choices=["none", "matmult", "all"])
    sub.add_argument("--auto-cast-type", default="bf16", choices=["bf16", "fp16", "tf32", "fp8_e4m3"])
    sub.add_argument("--optlevel", "-O", default="2", choices=["1", "2", "3"])
    sub.add_argument("--logical-nc-config", "--lnc", type=int)
    sub.add_argument("--logfile")
    sub.add_argument("--output", default="file.neff")
    sub.add_argument("--verbose", "-v", default="warning")
    sub.add_argument("--enable-fast-loading-neuron-binaries", action="store_true")
    sub.add_argument("--enable-mixed-precision-accumulation", action="store_true")
    return parser.parse_args(arguments)


def compile_(options: argparse.Namespace, arguments: list[str], told: dict) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from jaxlib import xla_client

    lnc = options.logical_nc_config or (2 if options.target in ("trn2", "trn3") else 1)
    if (options.target, lnc) not in MEMORY_GB:
        raise Refused("NCC_EARG001", f"logical-nc-config {lnc} is not supported on {options.target}")
    computation = xla_client.XlaComputation(Path(options.model).read_bytes())
    text = computation.as_hlo_text()
    signature = tensors(text, computation.program_shape())
    tag = tag_of(signature)
    if "NEURON_SIMULATOR" in os.environ:
        for kind, line in (("diary", tag), ("commands", json.dumps(arguments))):
            with open(f"{os.environ['NEURON_SIMULATOR']}.{kind}", "a") as file:
                file.write(line + "\n")
    Path("all_metrics.csv").write_text("litter, as the real one leaves\n")
    refuse(text, options.target)
    needed = sum(item["size"] for item in signature["inputs"])
    if needed > MEMORY_GB[options.target, lnc] * 10**9:
        raise Refused("NCC_EOOM001", f"{needed} bytes of tensors exceed the device memory")
    faults = told.get("faults", {})
    fault = faults.get(tag, faults.get("*", ""))
    before(fault, signature)
    signature["ranks"] = ranks_of(text)
    payload = build(computation, signature["ranks"])
    neff = pack(
        payload,
        signature,
        3 - lnc if fault == "wrong-lnc" else lnc,
        compress=not options.enable_fast_loading_neuron_binaries,
    )
    return after(fault, neff, Path(options.output))


def before(fault: str, signature: dict) -> None:
    if fault.startswith("slow:"):
        time.sleep(float(fault.partition(":")[2]))
    elif fault.startswith("NCC_"):
        raise Refused(fault, "the simulator was told to refuse this program")
    elif fault == "oom":
        sys.stderr.write("ERROR: backend process terminated abnormally with signal 9\n")
        raise SystemExit(70)
    elif fault == "crash":
        sys.stderr.write("Traceback (most recent call last): something broke inside\n")
        raise SystemExit(70)
    elif fault == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    elif fault == "names":
        for number, item in enumerate(signature["inputs"]):
            item["name"] = f"other{number}"
    elif fault == "unnamed":
        for side, items in (("input", signature["inputs"]), ("output", signature["outputs"])):
            for number, item in enumerate(items):
                suffix = ".must_alias_input" if item["name"].endswith(".must_alias_input") else ""
                item["name"] = f"{side}{number}{suffix}"


def after(fault: str, neff: bytes, output: Path) -> int:
    if fault == "kill":
        output.write_bytes(neff[: len(neff) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "truncated":
        neff = neff[: len(neff) // 2]
    if fault == "garbage":
        neff = b"not a NEFF" * 1000
    if fault != "empty":
        output.write_bytes(neff)
    return 0


def refuse(text: str, target: str) -> None:
    """The documented rules, as far as they can be read off the text."""
    opcodes = set(re.findall(r"= (?:\([^=]*?\)|\S+) ([a-z][a-z-]*)\(", text))
    if bad := opcodes & set(REFUSED_OPERATORS):
        raise Refused("NCC_EVRF001", f"Operator {min(bad)} is not supported.")
    if re.search(r"\bc(64|128)\[", text):
        raise Refused("NCC_EVRF004", "Complex data types are not supported")
    if re.search(r"\[[^\]]*<=", text.partition("\n")[2]):
        raise Refused("NCC_EMOD025", "dynamic dimension")
    if target != "trn3" and "f8e4m3fn[" in text:
        raise Refused("NCC_EVRF051", "F8E4M3FN is not supported on this target")
    for call in re.findall(r'custom_call_target="([^"]+)"', text):
        if not KNOWN_CALLS.fullmatch(call):
            raise Refused("NCC_EHCA005", f"unknown custom call {call}")
    for line in text.splitlines():
        if re.search(r"= [su]\d+\[[^\]]*\]\S* dot\(", line):
            raise Refused("NCC_EVRF035", "dot of integers")
        if found := re.search(r"= [su]\d+\[[^\]]*\]\S* (all-reduce|reduce-scatter)\(", line):
            raise Refused({"all-reduce": "NCC_EVRF061"}.get(found[1], "NCC_EVRF063"), f"{found[1]} of integers")


def ranks_of(text: str) -> int:
    """How many ranks run the module together: its largest replica group; 1 without collectives."""
    groups = re.findall(r"replica_groups=\{\{([\d,]+)\}", text)
    return max((len(group.split(",")) for group in groups), default=1)


def tensors(text: str, shape) -> dict:
    entry = text[text.index("\nENTRY ") :]
    names = {int(n): name for n, name in re.findall(r'parameter\((\d+)\)[^\n]*neff_input_names="([^"]*)"', entry)}
    outputs = re.search(r'ROOT[^\n]*neff_output_names="([^"]*)"', entry)
    given = outputs[1].split(",") if outputs else []
    head = text.partition("entry_computation_layout")[0]
    aliased = {
        int(parameter): int(result or 0)
        for result, parameter in re.findall(r"\{(\d*)\}: \((\d+), \{\}, must-alias\)", head)
    }
    inputs = []
    for number, item in enumerate(shape.parameter_shapes()):
        name = names.get(number, f"input{number}")
        inputs.append(described(name + ".must_alias_input" * (number in aliased), item))
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    described_results = [
        described(given[number] if number < len(given) else f"output{number}", item)
        for number, item in enumerate(results)
    ]
    return {"inputs": inputs, "outputs": described_results, "aliases": sorted(aliased.items())}


def described(name: str, shape) -> dict:
    dtype = shape.numpy_dtype()
    size = dtype.itemsize
    for dimension in shape.dimensions():
        size *= dimension
    return {"name": name, "shape": list(shape.dimensions()), "dtype": str(dtype), "size": size}


def tag_of(signature: dict) -> str:
    shapes = {item["name"]: item["shape"] for item in signature["inputs"]}
    if "block_tables" in shapes:
        return "decode_{}x{}".format(*shapes["block_tables"])
    if "block_table" in shapes:
        return f"prefill_{shapes['token_ids'][0]}x{shapes['block_table'][0]}"
    return f"ids_{shapes['ids'][0]}" if "ids" in shapes else "other"


def build(computation, ranks: int) -> bytes:
    from jaxlib import _jax, xla_client

    client = xla_client.make_cpu_client(num_devices=ranks)
    module = _jax.mlir.xla_computation_to_mlir_module(computation)
    devices = xla_client.DeviceList(tuple(client.local_devices()))
    options = xla_client.CompileOptions()
    options.num_replicas = ranks
    return client.serialize_executable(client.compile_and_load(module, devices, options))


def pack(payload: bytes, signature: dict, lnc: int, *, compress: bool) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        members = {
            "neff.json": json.dumps(
                {"simulator": True, **{key: signature[key] for key in ("aliases", "ranks")}}
            ).encode(),
            "sg00/def.json": json.dumps({"inputs": signature["inputs"], "outputs": signature["outputs"]}).encode(),
            "sg00/pe.json": b"{}",
            "sg00/pe.bin": payload,
        }
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    data = gzip.compress(raw.getvalue(), 1) if compress else raw.getvalue()
    header = b"".join(
        [
            struct.pack("<5Q", 1, 1024, len(data), 2, 0),
            b"simulator".ljust(128, b"\0"),
            struct.pack("<I", 1),
            hashlib.sha256(data).digest(),
            uuid.uuid4().bytes,
            b"program".ljust(256, b"\0"),
            struct.pack("<I", 1),
            bytes(64),
            struct.pack("<Q", 0),
            struct.pack("<I", lnc),
        ]
    )
    return header.ljust(1024, b"\0") + data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
