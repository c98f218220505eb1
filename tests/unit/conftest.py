from __future__ import annotations

import json

import pytest


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Tell the fake compiler how to behave: ``compiler(fail=[…])``; see fake_toolchain."""
    path = tmp_path / "compiler.json"
    monkeypatch.setenv("FAKE_COMPILER", str(path))

    def tell(**behaviour):
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(behaviour))
        draft.replace(path)  # at one stroke: compilers that run already read it

    tell()
    return tell


@pytest.fixture
def run(monkeypatch, tmp_path, compiler):
    """``commands.invoke`` with the fake toolchain, from ``tmp_path``, where a recipe is."""
    from commands import invoke
    from fake_toolchain import FAKE, write_recipe

    import neuron_aot.make

    monkeypatch.setattr(neuron_aot.make, "default_toolchain", lambda: FAKE)
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path)
    return invoke


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """A real S3 server in a process of its own, for the whole session."""
    import s3_server

    server = s3_server.start(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server, monkeypatch):
    """The server, with this process's settings those of a client that may write."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture(autouse=True)
def _own_settings(tmp_path, monkeypatch):
    """No test reads or fills the cache of the user who runs it, nor takes their AWS settings."""
    for name in ("NEURON_AOT_OFFLINE", "NEURON_AOT_TRUST", "NEURON_AOT_CACHE_SIZE", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NEURON_AOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
