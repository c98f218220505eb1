"""A store in an object store (S3), through obstore, which is imported when the first byte is asked for.

Settings are the usual ones of AWS: see ``aws``. What the service answers becomes one of our errors here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from ..contract.errors import (
    AccessDeniedError,
    ConfigError,
    ExpiredCredentialsError,
    FullDiskError,
    NeuronAotError,
    NotFoundError,
    StorageFaultError,
    UnknownBucketError,
    UnreachableError,
    UsageError,
    WrongRegionError,
)
from .aws import s3_options, sign_in_error
from .reader import CHUNK, Entry, digest_stream, refuse_absurd

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_REGION = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "TemporaryRedirect",
}
_DENIED = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "KMS.DisabledException", "AccessDeniedException"}
_CREDENTIALS = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "InvalidSecurity",
    "MissingSecurityHeader",
}
_FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "EntityTooLarge"}
_UNREACHABLE = ("error sending request", "dns error", "connection refused", "operation timed out", "connect error")


class ObjectReader:
    """A store below ``s3://bucket/prefix``. Thread-safe; must not be used on both sides of a fork."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        match = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/[A-Za-z0-9!_.*'()=+-]+)*)", self.location)
        if match is None or any(part in (".", "..") for part in match[2].split("/")):
            raise UsageError(f"{location!r} is not a place in S3", wanted="s3://BUCKET/PREFIX", found=location)
        self.bucket, self.prefix = match[1], match[2].strip("/")
        self._bucket_seen = False

    @cached_property
    def client(self):
        """The obstore client."""
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise ConfigError(
                "reading from S3 needs the obstore package",
                wanted="obstore",
                found="not installed",
                next_command="pip install 'neuron-aot-runtime[s3]'",
            ) from error
        return S3Store(
            self.bucket,
            prefix=self.prefix or None,
            retry_config={
                "max_retries": 4,
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=5),
                    "base": 2,
                },
                "retry_timeout": timedelta(seconds=60),
            },
            **s3_options(),
        )

    def read(self, path: str) -> bytes:
        import obstore

        with self.errors(path):
            answer = obstore.get(self.client, path)
            refuse_absurd(answer.meta["size"], path, self.location)
            return bytes(answer.bytes())

    def stat(self, path: str) -> Entry:
        import obstore

        with self.errors(path, head=True):
            return _entry(obstore.head(self.client, path))

    def stream(self, path: str, start: int = 0) -> Iterator[bytes]:
        import obstore

        with self.errors(path):
            options = {"range": {"offset": start}} if start else None
            for chunk in obstore.get(self.client, path, options=options).stream(min_chunk_size=CHUNK):
                yield memoryview(chunk)

    def digest(self, path: str) -> tuple[str, int]:
        return digest_stream(self.stream(path))

    def blob_file(self, digest: str, size: int, *, fresh: bool = False) -> Path:
        raise TypeError("an object store has no local files: read it through a CachedReader")

    def list(self, directory: str) -> list[Entry]:
        import obstore

        with self.errors(directory, proves_bucket=False):
            found = [_entry(meta) for page in obstore.list(self.client, directory, chunk_size=1000) for meta in page]
        if not found and not self._bucket_seen:
            self._require_bucket(directory)
        return sorted(found, key=lambda entry: entry.path)

    def names(self, directory: str) -> list[str]:
        return [entry.path for entry in self.list(directory)]

    @contextmanager
    def errors(
        self, path: str, *, head: bool = False, proves_bucket: bool = True, passing: tuple[type[Exception], ...] = ()
    ):
        """The one border from the service's answers to our errors, less those of ``passing``.

        ``head``: the request was one whose answer has no body, so an error says too little. ``proves_bucket``: whether
        an answer without an error means that the bucket exists.
        """
        from obstore.exceptions import BaseError

        try:
            yield
            self._bucket_seen = self._bucket_seen or proves_bucket
        except (NeuronAotError, *passing):
            raise
        except (BaseError, OSError) as error:
            if (
                head
                and _code(error) is None
                and not _unreachable(error)
                and not (self._bucket_seen and isinstance(error, FileNotFoundError))
            ):
                self.read_one_byte(path)  # asks for the same with a body, and raises what that says
            self._raise(error, path)

    def read_one_byte(self, path: str) -> bytes:
        """The first byte, to see what the service says. Raises what ``read`` does."""
        import obstore

        with self.errors(path):
            return bytes(obstore.get_range(self.client, path, start=0, length=1))

    def _require_bucket(self, directory: str) -> None:
        """Some services list an unknown bucket as an empty one; reading from it tells."""
        try:
            self.read_one_byte(f"{directory}/none")
        except NotFoundError:
            pass

    def _raise(self, error: Exception, path: str) -> NoReturn:
        code, text = _code(error), str(error).partition("\n\nDebug source")[0]
        said = code or _status(text) or type(error).__name__
        where = {"wanted": f"{path} in {self.location}", "found": said}
        doctor = f"neuron-aot doctor {self.location}"
        if (provider := re.search(r"External AWS credential provider: (.*)", text)) is not None:
            raise sign_in_error(provider[1]) from error
        if code == "NoSuchBucket":
            raise UnknownBucketError(
                f"there is no bucket {self.bucket}", **where, next_command=f"check the name and the endpoint: {doctor}"
            ) from error
        if isinstance(error, FileNotFoundError) or code in ("NoSuchKey", "NotFound"):
            self._bucket_seen = True
            raise NotFoundError(f"{path} is not in the store {self.location}", found=said) from error
        if code in _EXPIRED:
            raise ExpiredCredentialsError(
                f"the credentials for {self.location} have expired",
                **where,
                next_command="sign in again (aws sso login, or renew AWS_SESSION_TOKEN), then run it again",
            ) from error
        if code in _REGION or _status(text) in ("301", "307") or "Received redirect without" in text:
            region = re.search(r"<Region>([a-z0-9-]+)</Region>|expecting '([a-z0-9-]+)'", text)
            named = (region[1] or region[2]) if region else None
            raise WrongRegionError(
                f"the bucket {self.bucket} is in another region",
                **where,
                next_command=f"AWS_REGION={named or 'REGION'} …  ({doctor} shows where the region came from)",
            ) from error
        if code in _FULL or _status(text) == "507":
            raise FullDiskError(f"no space is left at {self.location}", **where) from error
        if code in _CREDENTIALS:
            raise AccessDeniedError(
                f"{self.location} does not know these credentials", **where, next_command=f"check them: {doctor}"
            ) from error
        if code in _DENIED or isinstance(error, PermissionError) or _status(text) in ("401", "403"):
            raise AccessDeniedError(
                f"access to {path} in the store {self.location} is denied",
                **where,
                next_command=f"ask for s3:GetObject and s3:ListBucket there (writers: s3:PutObject): {doctor}",
            ) from error
        if _no_credentials(text):
            raise AccessDeniedError(
                f"there are no credentials for {self.location}",
                **where,
                next_command=f"set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: {doctor}",
            ) from error
        if _unreachable(error):
            raise UnreachableError(
                f"{self.location} cannot be reached",
                wanted=where["wanted"],
                found=_first_line(text),
                next_command=f"check the network and AWS_ENDPOINT_URL: {doctor}; NEURON_AOT_OFFLINE=1 serves from the cache",
            ) from error
        raise StorageFaultError(f"the store {self.location} failed at {path}", found=_first_line(text)) from error


def _entry(meta) -> Entry:
    return Entry(meta["path"], meta["size"], meta["last_modified"].timestamp())


def _code(error: Exception) -> str | None:
    match = re.search(r"<Code>([A-Za-z0-9.]+)</Code>", str(error))
    return match[1] if match else None


def _status(text: str) -> str | None:
    match = re.search(r"status code: (\d{3})", text)
    return match[1] if match else None


def _unreachable(error: Exception) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in _UNREACHABLE)


def _no_credentials(text: str) -> bool:
    return "169.254.169.254" in text or "instance metadata" in text.lower()


def _first_line(text: str) -> str:
    line = re.sub(r" in [\d.]+(µs|ms|s)\b|, max_retries: \d+, retry_timeout: \d+s ", "", text.partition("\n")[0])
    return line.removeprefix("Generic S3 error: ").removeprefix("Error performing ")[:300]
