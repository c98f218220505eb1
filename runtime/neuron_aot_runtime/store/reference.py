"""References: how users name a bundle.

<store>@<ref>          ./store@smollm2/demo
<store>@<bundle id>    ./store@3f0c… (64 hex digits)
<store>                a store whose refs (or, without refs, bundles) all mean one bundle
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..contract.errors import UsageError
from ..contract.layout import is_bundle_id, ref_path


@dataclass(frozen=True)
class Reference:
    """``name``: a ref or a bundle id, or None for the store's only bundle."""

    store: str
    name: str | None

    def __str__(self) -> str:
        return self.store if self.name is None else f"{self.store}@{self.name}"


def parse_reference(text: str) -> Reference:
    """Split a reference at its last ``@``; a text that is an existing directory is a store as it stands.

    So a path may contain ``@``. Raises UsageError for an empty part or a bad ref name.
    """
    if os.path.isdir(os.path.expanduser(text)):
        return Reference(text, None)
    store, separator, name = text.rpartition("@")
    if not separator:
        store, name = text, None
    if not store or name == "":
        raise UsageError(f"{text!r} is not a reference", wanted="STORE@REF, STORE@BUNDLE_ID or STORE", found=repr(text))
    if name is not None and not is_bundle_id(name):
        ref_path(name)
    return Reference(store, name)
