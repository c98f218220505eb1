"""Settings of AWS that no S3 server here can judge: what leaves the client is recorded by a loopback HTTP server."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from neuron_aot.store import open_store

KEY_ID = "arn:aws:kms:eu-north-1:123456789012:key/abcd"


@dataclass
class Recorder:
    """``requests``: (method, path and query, headers), less those to a credential service, which are in ``asked``."""

    url: str
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def headers(self, method: str, query: str = "") -> list[dict[str, str]]:
        return [headers for how, path, headers in self.requests if how == method and query in path]


@pytest.fixture
def recorder(monkeypatch):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, said = 200, b""
            if self.path == "/credentials":
                recorded.asked.append(self.headers["Authorization"])
                credentials = {"AccessKeyId": "role-key", "SecretAccessKey": "s", "Token": "role-token"}
                credentials["Expiration"] = "2099-01-01T00:00:00Z"
                said = json.dumps(credentials).encode()
            else:
                headers = {name.lower(): value for name, value in self.headers.items()}
                recorded.requests.append((self.command, self.path, headers))
                if self.command == "POST" and "?uploads" in self.path:
                    said = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
                elif "?delete" in self.path:
                    said = b"<DeleteResult><Deleted><Key>prefix/refs/a.json</Key></Deleted></DeleteResult>"
                elif self.command == "POST":
                    said = b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
                elif "list-type" in self.path:
                    said = b"<ListBucketResult></ListBucketResult>"
                elif self.command in ("GET", "HEAD"):
                    said = b"x"
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.send_header("ETag", '"e"')
            self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(said)

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = answer

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    recorded = Recorder(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", recorded.url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield recorded
    server.shutdown()


@pytest.fixture
def keys(monkeypatch):
    for name, value in {"ACCESS_KEY_ID": "the-key", "SECRET_ACCESS_KEY": "s", "SESSION_TOKEN": "the-token"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


def use(directory) -> None:
    """Every kind of request that a store makes."""
    backend = open_store("s3://bucket/prefix").backend
    backend.create("refs/a.json", b"1")
    backend.replace("refs/a.json", b"2")
    (directory / "blob").write_bytes(bytes(9 << 20))
    backend.replace_file("blobs/a", directory / "blob")
    assert backend.read("refs/a.json") == b"x"
    backend.stat("refs/a.json")
    backend.list("refs")
    backend.delete("refs/a.json")


def test_whatever_is_written_asks_for_encryption_under_the_key(recorder, keys, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms")
    monkeypatch.setenv("AWS_SSE_KMS_KEY_ID", KEY_ID)
    use(tmp_path)
    begun = recorder.headers("POST", "uploads")
    whole = [headers for headers in recorder.headers("PUT") if "if-none-match" in headers]
    records = [headers for headers in recorder.headers("PUT", "refs/a.json")]
    assert len(begun) == 1 and len(whole) == 1 and len(records) == 2
    for headers in (*begun, *records):
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == KEY_ID
    assert whole[0]["if-none-match"] == "*"


def test_the_requester_pays_for_every_request(recorder, keys, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_REQUEST_PAYER", "requester")
    use(tmp_path)
    assert {how for how, _, _ in recorder.requests} >= {"GET", "HEAD", "PUT", "POST"}
    unpaid = [item[:2] for item in recorder.requests if item[2].get("x-amz-request-payer") != "requester"]
    assert not unpaid


def test_keys_region_and_session_token_sign_every_request(recorder, keys, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    use(tmp_path)
    for _, _, headers in recorder.requests:
        assert "Credential=the-key/" in headers["authorization"] and "/eu-north-1/s3/" in headers["authorization"]
        assert headers["x-amz-security-token"] == "the-token"


def test_a_profile_signs_with_its_keys(recorder, monkeypatch, tmp_path):
    (tmp_path / "aws-config").write_text(f"[profile ci]\nregion = eu-north-1\nendpoint_url = {recorder.url}\n")
    (tmp_path / "aws-credentials").write_text("[ci]\naws_access_key_id = of-profile\naws_secret_access_key = s\n")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_PROFILE", "ci")
    use(tmp_path)
    assert all("Credential=of-profile/" in headers["authorization"] for _, _, headers in recorder.requests)
    assert all("/eu-north-1/s3/" in headers["authorization"] for _, _, headers in recorder.requests)


def test_a_container_has_its_role(recorder, monkeypatch, tmp_path):
    (tmp_path / "token").write_text("the-pod")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{recorder.url}/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    use(tmp_path)
    assert recorder.asked[0] == "the-pod"
    assert all("Credential=role-key/" in headers["authorization"] for _, _, headers in recorder.requests)
