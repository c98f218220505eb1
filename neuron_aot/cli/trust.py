"""neuron-aot sign, keys: who made a bundle, and whose bundles are served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _output

_Policy = Annotated[
    Path, typer.Option(envvar="NEURON_AOT_TRUST", help="The policy file (NEURON_AOT_TRUST).", show_default=False)
]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


def sign_command(
    reference: Annotated[str, typer.Argument(help="STORE@REF, STORE@BUNDLE_ID or STORE.", show_default=False)],
    key: Annotated[Path, typer.Option(help="The private key's file; see keys new.", show_default=False)],
    json_output: _Json = False,
) -> None:
    """Sign a bundle: verify its manifest, and store an ed25519 signature over its id beside it."""
    from neuron_aot_runtime.contract.layout import is_bundle_id
    from neuron_aot_runtime.store import open_reader, parse_reference, read_manifest, read_ref

    from ..store import open_store
    from ..store.signing import sign_bundle

    parsed = parse_reference(reference)
    reader = open_reader(parsed.store)
    # Not through the policy: whoever signs first has no signature to show.
    if parsed.name is None:
        from neuron_aot_runtime.contract.errors import UsageError

        raise UsageError("say which bundle to sign", wanted=f"{parsed.store}@REF or @BUNDLE_ID", found=reference)
    bundle = parsed.name if is_bundle_id(parsed.name) else read_ref(reader, parsed.name).bundle
    read_manifest(reader, bundle)
    signature = sign_bundle(open_store(parsed.store), bundle, key)
    _output.talk(f"{bundle} is signed with {signature.public_key}")
    if json_output:
        _output.data(signature.model_dump(mode="json"))
    else:
        print(bundle)


def new_command(
    file: Annotated[Path, typer.Argument(help="The private key's file to make.", show_default=False)],
    json_output: _Json = False,
) -> None:
    """Make a key pair: the private key into a file, the public key on stdout."""
    from ..store.signing import new_key

    _tell_key(new_key(file), json_output)


def show_command(
    file: Annotated[Path, typer.Argument(help="A private key's file.", show_default=False)], json_output: _Json = False
) -> None:
    """Print the public key of a private key."""
    from ..store.signing import public_key

    _tell_key(public_key(file), json_output)


def trust_command(
    name: Annotated[str, typer.Argument(help="Who has the key.", show_default=False)],
    public_key: Annotated[str, typer.Argument(help="ed25519:…", show_default=False)],
    policy: _Policy,
    optional: Annotated[
        bool, typer.Option("--optional", help="A new policy: unsigned bundles are served too.")
    ] = False,
    json_output: _Json = False,
) -> None:
    """Add a public key to a policy."""
    from ..store.signing import trust_key

    _tell_policy(policy, trust_key(policy, name, public_key, require=not optional), json_output)


def distrust_command(
    name: Annotated[str, typer.Argument(help="Who has the key.", show_default=False)],
    policy: _Policy,
    json_output: _Json = False,
) -> None:
    """Remove a public key from a policy."""
    from ..store.signing import distrust_key

    _tell_policy(policy, distrust_key(policy, name), json_output)


def list_command(policy: _Policy, json_output: _Json = False) -> None:
    """Show a policy."""
    from neuron_aot_runtime.store.trust import read_policy

    _tell_policy(policy, read_policy(policy), json_output)


def _tell_key(public_key: str, json_output: bool) -> None:
    from neuron_aot_runtime.store.trust import key_id

    if json_output:
        _output.data({"public_key": public_key, "key_id": key_id(public_key)})
    else:
        print(public_key)


def _tell_policy(file: Path, policy, json_output: bool) -> None:
    if json_output:
        _output.data({"policy": str(file), **policy.model_dump()})
        return
    state = "a trusted signature is required" if policy.require else "unsigned bundles are served too"
    _output.table(f"{file}: {state}", ["name", "public key"], [[name, key] for name, key in policy.keys.items()])
