"""What S3 answers, told apart: each its own error and exit code, none a miss, no secret in any of them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fake_toolchain import FAKE, runs, write_recipe
from neuron_aot_runtime.contract.errors import (
    AccessDeniedError,
    ConfigError,
    ExpiredCredentialsError,
    FullDiskError,
    NotFoundError,
    StorageFaultError,
    UnknownBucketError,
    UnreachableError,
    WrongRegionError,
    error_from_dict,
)
from neuron_aot_runtime.store import aws, open_bundle
from neuron_aot_runtime.store.objects import ObjectReader

from neuron_aot.pipeline import compile_recipe
from neuron_aot.recipe import load_recipe
from neuron_aot.store import open_store
from neuron_aot.store.doctor import settings_in_force, try_store

CASES = {
    "AccessDenied": (403, AccessDeniedError, 5),
    "InvalidAccessKeyId": (403, AccessDeniedError, 5),
    "ExpiredToken": (400, ExpiredCredentialsError, 20),
    "PermanentRedirect": (301, WrongRegionError, 21),
    "AuthorizationHeaderMalformed": (400, WrongRegionError, 21),
    "NoSuchBucket": (404, UnknownBucketError, 22),
    "NoSuchKey": (404, NotFoundError, 4),
    "XMinioStorageFull": (507, FullDiskError, 24),
    "InvalidRequest": (400, StorageFaultError, 11),
}


@pytest.fixture
def answering(monkeypatch):
    """A real server that answers every request with one error of S3's."""
    servers = []

    def start(code: str, status: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = f"<Error><Code>{code}</Code><Message>no</Message><Region>eu-north-1</Region></Error>".encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = answer

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
            "AWS_ACCESS_KEY_ID": "the-key-id",
            "AWS_SECRET_ACCESS_KEY": "the-secret",
            "AWS_SESSION_TOKEN": "the-token",
        }.items():
            monkeypatch.setenv(name, value)

    yield start
    for server in servers:
        server.shutdown()


@pytest.mark.parametrize("code", CASES)
def test_each_answer_is_its_own_error(answering, code):
    status, kind, exit_code = CASES[code]
    answering(code, status)
    reader = ObjectReader("s3://bucket/prefix")
    calls = [
        lambda: reader.read("refs/a.json"),
        lambda: reader.stat("refs/a.json"),
        lambda: list(reader.stream("refs/a")),
    ]
    if code != "NoSuchKey":
        calls.append(lambda: reader.list("refs"))
        calls.append(lambda: open_store("s3://bucket/prefix").backend.create("refs/a.json", b"1"))
    for call in calls:
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind and caught.value.exit_code == exit_code
        text = str(caught.value) + json.dumps(caught.value.as_dict())
        assert "the-secret" not in text and "the-token" not in text
        again = error_from_dict(caught.value.as_dict())
        assert type(again) is kind and str(again) == str(caught.value)
    if code == "AuthorizationHeaderMalformed":
        assert "AWS_REGION=eu-north-1" in str(caught.value)


@pytest.mark.parametrize("code", ["AccessDenied", "ExpiredToken", "NoSuchBucket", "PermanentRedirect"])
def test_none_is_a_miss_and_none_starts_a_compile(answering, code, tmp_path, compiler):
    answering(code, CASES[code][0])
    recipe = load_recipe(write_recipe(tmp_path))
    with pytest.raises(CASES[code][1]):
        compile_recipe(recipe, open_store("s3://bucket/prefix"), FAKE, jobs=1)
    with pytest.raises(CASES[code][1]):
        open_bundle("s3://bucket/prefix@fake/demo")
    assert runs() == []


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://no-such-host.invalid:9000"])
def test_no_network_is_unreachable(monkeypatch, endpoint):
    for name, value in {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnreachableError, match="NEURON_AOT_OFFLINE") as caught:
        open_bundle("s3://bucket/prefix@fake/demo")
    assert caught.value.exit_code == 23


def test_a_real_server_agrees(s3, monkeypatch):
    with pytest.raises(UnknownBucketError):
        open_bundle("s3://no-such-bucket/prefix@fake/demo")
    with pytest.raises(UnknownBucketError):
        open_bundle("s3://no-such-bucket/prefix")
    with pytest.raises(NotFoundError):
        open_bundle("s3://bucket/nothing-here@fake/demo")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(AccessDeniedError, match="does not know these credentials"):
        open_bundle("s3://bucket/prefix@fake/demo")


def test_doctor_tells_what_works_and_where_settings_come_from(s3, monkeypatch):
    steps = {step.name: step for step in try_store("s3://bucket/doctor")}
    assert list(steps) == ["open", "read", "refs", "write"] and not any(step.error for step in steps.values())
    import s3_server

    for name, value in s3.environment(s3_server.READER).items():
        monkeypatch.setenv(name, value)
    steps = {step.name: step for step in try_store("s3://bucket/doctor")}
    assert steps["read"].error is None and "AccessDeniedError" in steps["write"].said
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    steps = try_store("s3://bucket/doctor")
    assert isinstance(steps[-1].error, AccessDeniedError)
    told = {item.name: item for item in settings_in_force()}
    assert told["aws endpoint"].source == "AWS_ENDPOINT_URL" and told["cache"].source == "NEURON_AOT_CACHE"
    assert told["aws credentials"].value == "set" and "wrong-secret" not in str(told)


def test_a_profile_gives_keys_region_and_endpoint(tmp_path):
    (tmp_path / "config").write_text("[profile ci]\nregion = eu-north-1\nendpoint_url = http://127.0.0.1:9\n")
    (tmp_path / "credentials").write_text("[ci]\naws_access_key_id = k\naws_secret_access_key = s\n[sso]\nx = 1\n")
    environ = {
        "AWS_PROFILE": "ci",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
    }
    options = aws.s3_options(environ)
    assert (options["access_key_id"], options["secret_access_key"], options["region"]) == ("k", "s", "eu-north-1")
    assert options["endpoint"] == "http://127.0.0.1:9" and options["client_options"]["allow_http"]
    by_environment = aws.s3_options(environ | {"AWS_ACCESS_KEY_ID": "other", "AWS_REGION": "us-west-2"})
    assert "access_key_id" not in by_environment and by_environment["region"] == "us-west-2"
    with pytest.raises(ConfigError, match="no AWS profile"):
        aws.s3_options(environ | {"AWS_PROFILE": "nobody"})
    assert aws.s3_options(environ | {"AWS_REQUEST_PAYER": "requester"})["request_payer"] is True
