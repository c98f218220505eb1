"""Signing bundles, and the keys and policies for it; the runtime's ``trust`` checks them."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from neuron_aot_runtime.contract.errors import ConfigError, UsageError
from neuron_aot_runtime.contract.layout import signature_path
from neuron_aot_runtime.store.reader import storage_errors
from neuron_aot_runtime.store.trust import Policy, Signature, key_id, message, read_policy

from .store import Store


def new_key(file: Path) -> str:
    """Make a private key (PEM, readable by its owner only); returns its public key. Raises UsageError if it exists."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # fmt: skip
    with storage_errors(file.name, str(file.parent)):
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise UsageError(
                f"{file} exists already", wanted="a new file", next_command="choose another name"
            ) from error
        with open(descriptor, "wb") as out:
            out.write(pem)
    return _public(key)


def public_key(file: Path) -> str:
    """The public key of a private key's file, as policies spell it. Raises ConfigError."""
    return _public(_private(file))


def sign_bundle(store: Store, bundle_id: str, file: Path) -> Signature:
    """Sign a bundle's id with a private key and store the signature beside it. Raises ConfigError, StoreError."""
    key = _private(file)
    raw = key.sign(message(bundle_id))
    signature = Signature(
        bundle=bundle_id, public_key=_public(key), signature=base64.b64encode(raw).decode()
    )  # fmt: skip
    data = (signature.model_dump_json(indent=1) + "\n").encode()
    path = signature_path(bundle_id, key_id(signature.public_key))
    if not store.backend.create(path, data) and store.read(path) != data:
        store.backend.replace(path, data)  # ed25519 gives one signature a message: what is there is not ours
    return signature


def trust_key(file: Path, name: str, key: str, *, require: bool = True) -> Policy:
    """Add a public key to a policy file, which is made when it is not there. Raises ConfigError."""
    key_id(key)
    policy = read_policy(file) if file.exists() else Policy(require=require, keys={})
    policy = Policy(require=policy.require, keys=policy.keys | {name: key})
    _write_policy(file, policy)
    return policy


def distrust_key(file: Path, name: str) -> Policy:
    """Remove a key from a policy file. Raises UsageError when it does not list it."""
    policy = read_policy(file)
    if name not in policy.keys:
        raise UsageError(f"{file} does not list {name!r}", found=", ".join(sorted(policy.keys)) or "no keys")
    policy = Policy(require=policy.require, keys={key: value for key, value in policy.keys.items() if key != name})
    _write_policy(file, policy)
    return policy


def _write_policy(file: Path, policy: Policy) -> None:
    with storage_errors(file.name, str(file.parent)):
        unfinished = file.with_name(file.name + ".new")
        unfinished.write_text(policy.model_dump_json(indent=1) + "\n")
        os.replace(unfinished, file)


def _private(file: Path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        found = error.strerror if isinstance(error, OSError) else "not a private key, or one with a password"
        raise ConfigError(
            f"the private key {file} cannot be read", wanted="a PEM file", found=found,
            next_command=f"neuron-aot keys new {file}",
        ) from error  # fmt: skip
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file} is another kind of key", wanted="ed25519", found=type(key).__name__)
    return key


def _public(key) -> str:
    from cryptography.hazmat.primitives import serialization

    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return "ed25519:" + base64.b64encode(raw).decode()
