from __future__ import annotations

import json

import pytest


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Tell the fake compiler how to behave: ``compiler(fail=[…])``; see fake_toolchain."""
    path = tmp_path / "compiler.json"
    monkeypatch.setenv("FAKE_COMPILER", str(path))

    def tell(**behaviour):
        path.write_text(json.dumps(behaviour))

    tell()
    return tell
