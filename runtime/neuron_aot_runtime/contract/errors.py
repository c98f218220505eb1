"""The one exception tree of neuron-aot.

    NeuronAotError            exit 1   (never raised itself)
    ├── UsageError            exit 2   the user's recipe, options or command line
    │   ├── RecipeError
    │   └── ConfigError       a serving option that breaks a rule
    ├── BundleMissError       exit 3   the bundle does not serve what was asked for
    ├── StoreError            exit 1   (never raised itself)
    │   ├── NotFoundError     exit 4   absent: a ref, bundle, record or blob
    │   ├── AccessDeniedError exit 5   present or not, we may not look
    │   │   └── ExpiredCredentialsError  exit 20
    │   ├── IntegrityError    exit 6   bytes that are not what their name says
    │   │   └── UntrustedError           exit 25  not signed by a key that the policy trusts
    │   ├── StorageFaultError exit 11  the storage itself failed: I/O error, a server's fault
    │   │   └── FullDiskError            exit 24
    │   ├── WrongRegionError         exit 21  the bucket is in another region
    │   ├── UnknownBucketError       exit 22  not an absent object: the whole place is not there
    │   └── UnreachableError         exit 23  no network, no such host, no answer
    │       └── OfflineError                  offline mode, and the cache does not have it
    ├── LoweringError         exit 7   a model that cannot become HLO
    ├── CompileError          exit 8   a code generator that failed
    │   └── TransientCompileError          it was killed or its worker lost: another try may succeed
    ├── DeviceError           exit 9   a device that failed or cannot run the artifact
    │   └── IncompatibleArtifactError
    └── CheckpointError       exit 10  weights that do not fit the bundle

Foreign exceptions are mapped to these at one border (the command line, the store back end, the plugin). A
``ValueError`` from us means the caller's argument; an ``AssertionError`` means a bug of ours. Exit code 1 is
kept for bugs, so CI can tell the kinds apart.
"""

from __future__ import annotations

from collections.abc import Sequence


class NeuronAotError(Exception):
    """An error with everything its reader needs: what was wanted, what was found, the next command.

    ``message`` is one sentence. ``details`` are further lines (one per difference, say). ``next_command`` is
    what to run or change now.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        wanted: str | None = None,
        found: str | None = None,
        details: Sequence[str] = (),
        next_command: str | None = None,
    ) -> None:
        self.message = message
        self.wanted = wanted
        self.found = found
        self.details = tuple(details)
        self.next_command = next_command
        super().__init__(message)

    def __str__(self) -> str:
        lines = [self.message]
        if self.wanted is not None:
            lines.append(f"  wanted: {self.wanted}")
        if self.found is not None:
            lines.append(f"  found:  {self.found}")
        lines += [f"  - {line}" for line in self.details]
        if self.next_command is not None:
            lines.append(f"  next:   {self.next_command}")
        return "\n".join(lines)

    def __reduce__(self):
        # Errors cross process borders (compile workers): keep every field.
        fields = {
            "wanted": self.wanted,
            "found": self.found,
            "details": self.details,
            "next_command": self.next_command,
        }
        return (_rebuild, (type(self), self.message, fields))

    def as_dict(self) -> dict:
        """The error as plain data, for ``--json``."""
        return {
            "error": type(self).__name__,
            "message": self.message,
            "wanted": self.wanted,
            "found": self.found,
            "details": list(self.details),
            "next": self.next_command,
            "exit_code": self.exit_code,
        }


def error_from_dict(data: dict) -> NeuronAotError:
    """The error that ``as_dict`` described, in a process that only got its description."""
    kinds, waiting = {}, [NeuronAotError]
    while waiting:
        kind = waiting.pop()
        kinds[kind.__name__] = kind
        waiting += kind.__subclasses__()
    fields = {
        "wanted": data["wanted"],
        "found": data["found"],
        "details": data["details"],
        "next_command": data["next"],
    }
    return kinds.get(data["error"], NeuronAotError)(data["message"], **fields)


def _rebuild(cls: type[NeuronAotError], message: str, fields: dict) -> NeuronAotError:
    return cls(message, **fields)


class UsageError(NeuronAotError):
    exit_code = 2


class RecipeError(UsageError):
    pass


class ConfigError(UsageError):
    pass


class BundleMissError(NeuronAotError):
    exit_code = 3


class StoreError(NeuronAotError):
    pass


class NotFoundError(StoreError):
    exit_code = 4


class AccessDeniedError(StoreError):
    exit_code = 5


class IntegrityError(StoreError):
    exit_code = 6


class StorageFaultError(StoreError):
    exit_code = 11


class ExpiredCredentialsError(AccessDeniedError):
    exit_code = 20


class WrongRegionError(StoreError):
    exit_code = 21


class UnknownBucketError(StoreError):
    exit_code = 22


class UnreachableError(StoreError):
    exit_code = 23


class OfflineError(UnreachableError):
    pass


class FullDiskError(StorageFaultError):
    exit_code = 24


class UntrustedError(IntegrityError):
    exit_code = 25


class LoweringError(NeuronAotError):
    exit_code = 7


class CompileError(NeuronAotError):
    exit_code = 8


class TransientCompileError(CompileError):
    pass


class DeviceError(NeuronAotError):
    exit_code = 9


class IncompatibleArtifactError(DeviceError):
    pass


class CheckpointError(NeuronAotError):
    exit_code = 10
