"""NEFF files: what is read, and what is refused."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from dataclasses import replace

import pytest
from neuron_aot_runtime.contract.errors import IncompatibleArtifactError, IntegrityError
from neuron_aot_runtime.device.neff import check_version, read_header, read_neff


def make(path, *, members=None, compress=True, header_size=1024, data_size=None, cut=None):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, content in (
            members or {"neff.json": b"{}", "sg00/def.json": b"{}", "sg00/pe.bin": b"x" * 300}
        ).items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    data = gzip.compress(raw.getvalue()) if compress else raw.getvalue()
    fields = struct.pack("<5Q", 2, header_size, len(data) if data_size is None else data_size, 2, 1)
    fields += b"2.21".ljust(128, b"\0") + struct.pack("<I", 1) + bytes(32) + bytes(range(16)) + b"net".ljust(256, b"\0")
    fields += struct.pack("<I", 1) + bytes(64) + struct.pack("<QI", 5, 2)
    content = fields.ljust(1024, b"\0") + data
    path.write_bytes(content[:cut])
    return path


@pytest.mark.parametrize("compress", [True, False])
def test_header_and_contents(tmp_path, compress):
    neff = read_neff(make(tmp_path / "a.neff", compress=compress))
    header = neff.header
    assert (header.package_version, header.version, header.build_version, header.name) == (2, "2.1", "2.21", "net")
    assert (header.core_size, header.feature_bits, header.uuid) == (2, 5, bytes(range(16)))
    assert neff.compressed is compress and neff.subgraphs == ("sg00",)
    assert neff.members == (("neff.json", 2), ("sg00/def.json", 2), ("sg00/pe.bin", 300))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"cut": 0}, "0 bytes in all"),
        ({"cut": 1000}, "1000 bytes in all"),
        ({"cut": 1100}, "as its header says"),
        ({"header_size": 64}, "starts with"),
        ({"data_size": 5}, "as its header says"),
        ({"members": {"neff.json": b"{}"}}, "def.json"),
        ({"members": {"sg00/def.json": b"{"}}, "tarball"),
    ],
)
def test_what_is_no_whole_neff_is_refused(tmp_path, options, told):
    with pytest.raises(IntegrityError, match="a.neff is not a whole NEFF") as caught:
        read_neff(make(tmp_path / "a.neff", **options))
    assert told in str(caught.value) and caught.value.exit_code == 6


def test_damage_inside_the_tarball_is_noticed(tmp_path):
    path = make(tmp_path / "a.neff")
    content = bytearray(path.read_bytes())
    content[1100] ^= 255
    path.write_bytes(content)
    read_header(path)
    with pytest.raises(IntegrityError):
        read_neff(path)


@pytest.mark.parametrize("newer", [{"package_version": 3}, {"version_major": 3}])
def test_a_newer_format_than_the_runtime_knows_is_refused(tmp_path, newer):
    header = read_header(make(tmp_path / "x.neff"))
    check_version(header, "decode_b1_c256")
    with pytest.raises(IncompatibleArtifactError, match="newer than this runtime knows") as caught:
        check_version(replace(header, **newer), "decode_b1_c256")
    assert "2.21" in caught.value.found and "neuron-aot-runtime" in caught.value.next_command
