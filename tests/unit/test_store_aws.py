"""Settings of AWS that no S3 server here can judge: what leaves the client is recorded by a loopback HTTP server."""

from __future__ import annotations

import hashlib
import json
import ssl
import sys
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from neuron_aot_runtime.contract.errors import AccessDeniedError, ExpiredCredentialsError, UnreachableError

from neuron_aot.store import open_store

KEY_ID = "arn:aws:kms:eu-north-1:123456789012:key/abcd"
ROLE = "arn:aws:iam::123456789012:role/reader"
FUTURE = "2099-01-01T00:00:00Z"


STS_ACTIONS = ("AssumeRole", "AssumeRoleWithWebIdentity")
PROFILES = f"""
[profile sso]
sso_session = corp
sso_account_id = 123456789012
sso_role_name = Reader
region = eu-north-1
[sso-session corp]
sso_region = eu-north-1
sso_start_url = https://corp.example/start
[profile role]
role_arn = {ROLE}
source_profile = base
region = eu-north-1
[profile base]
aws_access_key_id = base-key
aws_secret_access_key = s
[profile process]
credential_process = {sys.executable} tool.py
region = eu-north-1
"""


def sts_answer(action: str) -> str:
    return (
        f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><Credentials>'
        f"<AccessKeyId>role-key</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
        f"<Expiration>{FUTURE}</Expiration></Credentials></{action}Result></{action}Response>"
    )


def refused_xml(code: str) -> str:
    return f"<ErrorResponse><Error><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>"


@dataclass
class Recorder:
    """``requests``: (method, path and query, headers), less those to a credential service, which are in ``asked``.

    ``refuses``: the code with which the credential services refuse whoever asks.
    """

    url: str
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    refuses: str = ""
    handler: type[BaseHTTPRequestHandler] = BaseHTTPRequestHandler

    def headers(self, method: str, query: str = "") -> list[dict[str, str]]:
        return [headers for how, path, headers in self.requests if how == method and query in path]


@pytest.fixture
def recorder(monkeypatch):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode(errors="replace")
            status, said = 200, b""
            action = next((name for name in STS_ACTIONS if f"Action={name}&" in self.path + body), None)
            if action or self.path.startswith("/federation/"):
                recorded.asked.append(self.headers.get("x-amz-sso_bearer_token") or self.path + body)
                status = 403 if recorded.refuses else 200
                if action:
                    said = (refused_xml(recorded.refuses) if recorded.refuses else sts_answer(action)).encode()
                else:
                    role = {"accessKeyId": "role-key", "secretAccessKey": "s", "sessionToken": "t", "expiration": 4e12}
                    said = json.dumps(
                        {"__type": recorded.refuses} if recorded.refuses else {"roleCredentials": role}
                    ).encode()
            elif self.path == "/credentials":
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
    recorded = Recorder(f"http://127.0.0.1:{server.server_port}", handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", recorded.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", recorded.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", recorded.url)
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


@pytest.fixture
def sign_in(recorder, monkeypatch, tmp_path):
    """Chooses one of PROFILES; the SSO token is good until it is replaced: its file is returned."""
    (tmp_path / "config").write_text(PROFILES)
    (tmp_path / "tool.py").write_text("""print('{"Version": 1, "AccessKeyId": "role-key", "SecretAccessKey": "s"}')""")
    token = tmp_path / ".aws" / "sso" / "cache" / f"{hashlib.sha1(b'corp').hexdigest()}.json"
    token.parent.mkdir(parents=True)
    token.write_text(json.dumps({"accessToken": "of-sso", "expiresAt": FUTURE}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(sys.prefix) / "boto3")  # where `make install` puts it
    # botocore takes the home directory when it is imported.
    for holder in ("credentials.SSOProvider", "tokens.SSOTokenProvider"):
        monkeypatch.setattr(f"botocore.{holder}._SSO_TOKEN_CACHE_DIR", str(token.parent))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return lambda profile: monkeypatch.setenv("AWS_PROFILE", profile) or token


@pytest.mark.parametrize(("profile", "asked"), [("sso", "of-sso"), ("role", "Action=AssumeRole&"), ("process", None)])
def test_a_profile_that_needs_a_sign_in_gets_its_keys(recorder, sign_in, tmp_path, profile, asked):
    sign_in(profile)
    use(tmp_path)
    assert recorder.requests
    assert all("Credential=role-key/" in headers["authorization"] for _, _, headers in recorder.requests)
    assert all("/eu-north-1/s3/" in headers["authorization"] for _, _, headers in recorder.requests)
    assert asked in recorder.asked[0] if asked else not recorder.asked


def expired(token):
    token.write_text(json.dumps({"accessToken": "of-sso", "expiresAt": "2020-01-01T00:00:00Z"}))


@pytest.mark.parametrize("spoil", [expired, lambda token: token.unlink()])
def test_an_sso_session_that_is_over_or_never_was_is_named(recorder, sign_in, spoil):
    spoil(sign_in("sso"))
    with pytest.raises(ExpiredCredentialsError) as caught:
        open_store("s3://bucket/prefix").backend.stat("refs/a.json")
    assert "aws sso login --profile sso" in caught.value.next_command
    assert not recorder.requests


@pytest.mark.parametrize(
    ("profile", "code", "error"),
    [
        ("sso", "ForbiddenException", AccessDeniedError),
        ("role", "AccessDenied", AccessDeniedError),
        ("role", "ExpiredToken", ExpiredCredentialsError),
    ],
)
def test_what_a_sign_in_service_refuses_is_told(recorder, sign_in, profile, code, error):
    recorder.refuses = code
    sign_in(profile)
    with pytest.raises(error) as caught:
        open_store("s3://bucket/prefix").backend.read("refs/a.json")
    assert code in caught.value.found and repr(profile) in caught.value.message
    assert not recorder.requests


def test_a_process_that_gives_no_credentials_is_told(recorder, sign_in, tmp_path):
    (tmp_path / "tool.py").write_text("raise SystemExit('no')")
    sign_in("process")
    with pytest.raises(AccessDeniedError, match="'process' got no credentials"):
        open_store("s3://bucket/prefix").backend.list("refs")


def test_a_sign_in_service_that_does_not_answer_is_no_denial(recorder, sign_in, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    sign_in("sso")
    with pytest.raises(UnreachableError):
        open_store("s3://bucket/prefix").backend.read("refs/a.json")


@pytest.fixture
def web_identity(recorder, monkeypatch, tmp_path):
    """What EKS gives a pod. STS is asked by https only, so here it has a certificate of its own."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
    now, day = datetime.now(UTC), timedelta(days=1)
    builder = builder.not_valid_before(now - day).not_valid_after(now + day)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    pem = serialization.Encoding.PEM
    certificate.write_bytes(builder.sign(private, hashes.SHA256()).public_bytes(pem))
    key.write_bytes(private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), recorder.handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("the-pod")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"https://localhost:{server.server_port}")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    yield
    server.shutdown()


def test_a_web_identity_assumes_its_role(recorder, web_identity, tmp_path):
    use(tmp_path)
    assert "WebIdentityToken=the-pod" in recorder.asked[0]
    assert all("Credential=role-key/" in headers["authorization"] for _, _, headers in recorder.requests)


@pytest.mark.parametrize(
    ("code", "error"), [("ExpiredTokenException", ExpiredCredentialsError), ("AccessDenied", AccessDeniedError),
                        ("InvalidIdentityToken", AccessDeniedError)],
)  # fmt: skip
def test_a_web_identity_that_is_refused_is_told(recorder, web_identity, code, error):
    recorder.refuses = code
    with pytest.raises(error):
        open_store("s3://bucket/prefix").backend.read("refs/a.json")
    assert not recorder.requests
