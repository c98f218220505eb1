"""The usual AWS settings, and where each came from.

obstore reads keys, tokens, web identities and container or instance roles from the environment by itself. Profiles
it does not know: static keys, region and endpoint are taken from the profile here; profiles that need a sign-in
(SSO, roles, processes) go through boto3 when it is installed.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..contract.errors import (
    AccessDeniedError,
    ConfigError,
    ExpiredCredentialsError,
    NeuronAotError,
    UnreachableError,
)

_ENVIRONMENT_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
#: In a profile: it has no keys of its own, somebody has to be asked for them.
_SIGN_IN = {"sso_session", "sso_start_url", "login_session", "role_arn", "credential_process"}
_SIGN_IN_AGAIN = ("SSO", "Login", "TokenRetrieval", "(ExpiredToken", "(401)")
_UNREACHABLE = ("EndpointConnection", "ConnectTimeout", "ReadTimeout", "ConnectionClosed", "ProxyConnection")


@dataclass(frozen=True)
class Setting:
    """One setting in force. ``value`` is None when unset; a secret's value is never kept here."""

    name: str
    value: str | None
    source: str


def settings(environ: Mapping[str, str] = os.environ) -> list[Setting]:
    """The settings in force, without secrets."""
    profile = _profile(environ)
    return [
        _choose(
            "endpoint", environ, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), profile, "endpoint_url"
        ),
        _choose("region", environ, ("AWS_REGION", "AWS_DEFAULT_REGION"), profile, "region"),
        _credentials(environ, profile),
        _choose("server_side_encryption", environ, ("AWS_SERVER_SIDE_ENCRYPTION",), {}, ""),
        _choose("kms_key", environ, ("AWS_SSE_KMS_KEY_ID",), {}, ""),
        _choose("request_payer", environ, ("AWS_REQUEST_PAYER",), {}, ""),
    ]


def s3_options(environ: Mapping[str, str] = os.environ) -> dict:
    """Keyword arguments for obstore's S3Store. Raises ConfigError for a profile that needs boto3 when it is absent."""
    profile = _profile(environ)
    chosen = {setting.name: setting.value for setting in settings(environ)}
    options: dict = {"region": chosen["region"] or "us-east-1", "client_options": {"connect_timeout": "5s"}}
    if endpoint := chosen["endpoint"]:
        options |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
        options["client_options"]["allow_http"] = endpoint.startswith("http://")
    if chosen["request_payer"]:
        options["request_payer"] = True
    if any(environ.get(name) for name in _ENVIRONMENT_CREDENTIALS) or not profile:
        return options
    if "aws_access_key_id" in profile:
        options["access_key_id"] = profile["aws_access_key_id"]
        options["secret_access_key"] = profile.get("aws_secret_access_key", "")
        if "aws_session_token" in profile:
            options["session_token"] = profile["aws_session_token"]
    elif _SIGN_IN & set(profile):
        options["credential_provider"] = _boto3_provider(profile["name"])
    return options


def _boto3_provider(profile: str):
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise ConfigError(
            f"the AWS profile {profile!r} needs a sign-in, which needs boto3",
            wanted="boto3",
            found="not installed",
            next_command="pip install boto3, or export the credentials (aws configure export-credentials --format env)",
        ) from error
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=profile))
    except (BotoCoreError, ClientError, ValueError) as error:
        raise sign_in_error(f"{type(error).__name__}: {error}") from error


def sign_in_error(said: str, environ: Mapping[str, str] = os.environ) -> NeuronAotError:
    """Our error for what boto3 says when it cannot get a profile's credentials, as ``KindOfError: message``."""
    name = _profile(environ).get("name", "default")
    wanted = f"the credentials of the AWS profile {name!r}"
    if any(sign in said for sign in _UNREACHABLE):
        return UnreachableError(
            "AWS's sign-in service cannot be reached", wanted=wanted, found=said, next_command="check the network"
        )
    if any(sign in said for sign in _SIGN_IN_AGAIN):
        return ExpiredCredentialsError(
            f"the sign-in of the AWS profile {name!r} has expired, or there was none",
            wanted=wanted,
            found=said,
            next_command=f"aws sso login --profile {name}, then run it again",
        )
    return AccessDeniedError(
        f"the AWS profile {name!r} got no credentials",
        wanted=wanted,
        found=said,
        next_command=f"see what AWS says: aws sts get-caller-identity --profile {name}",
    )


def _profile(environ: Mapping[str, str]) -> dict[str, str]:
    """What both of AWS's files say of the profile in force; empty when neither names it."""
    name = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
    home = Path(environ.get("HOME") or "/nonexistent") / ".aws"
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(Path(environ.get(variable) or home / file))
        except (OSError, configparser.Error) as error:
            raise ConfigError(f"AWS's {file} file cannot be read", found=str(error).splitlines()[0]) from error
        if parser.has_section(section):
            found |= dict(parser.items(section))
    if not found and name != "default":
        raise ConfigError(
            f"there is no AWS profile {name!r}",
            wanted="a profile of that name",
            next_command="aws configure list-profiles",
        )
    return found | {"name": name} if found else {}


def _choose(name: str, environ: Mapping[str, str], variables, profile: Mapping[str, str], key: str) -> Setting:
    for variable in variables:
        if value := environ.get(variable):
            return Setting(name, value, variable)
    if value := profile.get(key):
        return Setting(name, value, f"profile {profile['name']}")
    return Setting(name, None, "not set")


def _credentials(environ: Mapping[str, str], profile: Mapping[str, str]) -> Setting:
    for variable in _ENVIRONMENT_CREDENTIALS:
        if environ.get(variable):
            return Setting("credentials", "set", variable)
    if profile and ({"aws_access_key_id"} | _SIGN_IN) & set(profile):
        return Setting("credentials", "set", f"profile {profile['name']}")
    return Setting("credentials", None, "not set: an instance role, if there is one")
