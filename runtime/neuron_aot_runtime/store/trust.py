"""Who made a bundle: detached ed25519 signatures over its id, and the policy that says whose count.

The id is the sha256 of the manifest, and the manifest names every artifact by sha256, so one signature covers all.
It is checked before the manifest is parsed, so nothing of a bundle that is refused reaches a parser or a device.

A policy is a JSON file: {"require": true, "keys": {"ci": "ed25519:<base64 of 32 bytes>"}}
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from ..contract.errors import ConfigError, IntegrityError, UntrustedError
from ..contract.layout import signature_directory
from ..contract.manifest import Key
from .reader import StoreReader
from .records import parse_record

_PREFIX = "ed25519:"


class Policy(BaseModel):
    """``require``: a bundle without a trusted signature is refused. ``keys``: name -> public key."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    require: bool = True
    keys: dict[str, str]


class Signature(BaseModel):
    """``signatures/<bundle id>/<key id>.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    bundle: Key
    public_key: str
    signature: str


def message(bundle_id: str) -> bytes:
    """What is signed; the first line keeps a signature from meaning anything elsewhere."""
    return f"neuron-aot bundle 1\n{bundle_id}\n".encode()


def key_id(public_key: str) -> str:
    """16 hex digits that name a public key. Raises ConfigError for what is no public key."""
    return hashlib.sha256(_raw(public_key)).hexdigest()[:16]


def read_policy(path: Path) -> Policy:
    """Raises ConfigError for a policy that cannot be read: a policy that is set must never be skipped."""
    try:
        policy = Policy.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        found = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
        raise ConfigError(
            f"the trust policy {path} cannot be read",
            wanted='{"require": true, "keys": {"NAME": "ed25519:…"}}',
            found=found,
            next_command=f"neuron-aot keys trust NAME PUBLIC_KEY --policy {path}",
        ) from error
    for public_key in policy.keys.values():
        key_id(public_key)
    return policy


def check_trusted(reader: StoreReader, bundle_id: str, policy: Policy) -> list[str]:
    """The names of the trusted keys that signed the bundle.

    Raises UntrustedError when a trusted key's signature is not one over this bundle, or when the policy requires one
    and there is none.
    """
    names = {key_id(public_key): (name, public_key) for name, public_key in policy.keys.items()}
    signers, others = [], []
    for path in reader.names(signature_directory(bundle_id)):
        known = names.get(Path(path).stem)
        if known is None:
            others.append(Path(path).stem)
            continue
        name, public_key = known
        found = parse_record(Signature, reader.read(path), where=f"{reader.location}/{path}")
        if found.bundle != bundle_id or found.public_key != public_key or not is_signed(found):
            raise UntrustedError(
                f"the signature of {name} on this bundle is forged or of another bundle; nothing of it was read",
                wanted=f"{name}'s signature over {bundle_id}",
                found=f"{reader.location}/{path}",
                next_command=f"remove {path} there, and find out who wrote it",
            )
        signers.append(name)
    if policy.require and not signers:
        raise UntrustedError(
            f"no trusted key has signed bundle {bundle_id}; nothing of it was read",
            wanted=f"a signature of {' or '.join(sorted(policy.keys)) or 'a key, but the policy lists none'}",
            found=f"signatures of other keys: {', '.join(others)}" if others else "no signature",
            next_command=f"neuron-aot sign {reader.location}@{bundle_id} --key PRIVATE_KEY, by someone the policy trusts",
        )
    return signers


def is_signed(signature: Signature) -> bool:
    """Whether the signature is its key's over its bundle. Raises ConfigError when cryptography is absent."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise ConfigError(
            "a trust policy is set, and checking signatures needs the cryptography package",
            wanted="cryptography",
            found="not installed",
            next_command="pip install 'neuron-aot-runtime[trust]'",
        ) from error
    try:
        raw = base64.b64decode(signature.signature, validate=True)
        Ed25519PublicKey.from_public_bytes(_raw(signature.public_key)).verify(raw, message(signature.bundle))
    except (InvalidSignature, ValueError, ConfigError):
        return False
    return True


def require_content(data: bytes, bundle_id: str, where: str) -> None:
    """Raises IntegrityError unless a manifest's bytes are those its id names; comes before any parsing."""
    found = hashlib.sha256(data).hexdigest()
    if found != bundle_id:
        raise IntegrityError(
            f"{where} is damaged: its content is not what its name says",
            wanted=bundle_id,
            found=found,
            next_command=f"neuron-aot verify STORE --repair OTHER_STORE, or remove {where} and compile again",
        )


def _raw(public_key: str) -> bytes:
    try:
        raw = base64.b64decode(public_key.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        raw = b""
    if len(raw) != 32 or not public_key.startswith(_PREFIX):
        raise ConfigError("not an ed25519 public key", wanted="ed25519:<base64 of 32 bytes>", found=public_key)
    return raw
