"""The TOML file of option --access: groups with their roles, and what a method of authentication needs."""

import ipaddress
import re
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from spark_log.console.access.roles import EVERY_CHANGE, Allow, Role
from spark_log.errors import InvalidConfigurationError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MASK = re.compile(r"(?:key|value|headers|key_record|record)(?:\..+)?")


class Group(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`role`: viewer (no changes), operator (all), or a list of changes. `masked`: hidden fields of messages."""

    role: Literal["viewer", "operator"] | list[Allow] = "viewer"
    topics: tuple[str, ...] = ("*",)
    messages: bool = True
    masked: tuple[str, ...] = ()

    def to_role(self) -> Role:
        changes = {"viewer": frozenset[Allow](), "operator": EVERY_CHANGE}
        allows = changes[self.role] if isinstance(self.role, str) else frozenset(self.role)
        return Role(allows, self.topics, self.messages, frozenset(self.masked))


class FileUser(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`password`: a hash (`python -m spark_log.console.access.passwords`)."""

    password: str
    groups: tuple[str, ...] = ()


class ProxyHeaders(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Headers with the user and, separated by commas, the groups; trusted from the addresses `proxies` only."""

    proxies: list[str]
    user: str = "X-Forwarded-User"
    groups: str = "X-Forwarded-Groups"

    def networks(self) -> list[Network]:
        return [ipaddress.ip_network(proxy) for proxy in self.proxies]


class Provider(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An OpenID Connect provider. `client_secret_file`: a file with the secret; without it, the client is public."""

    issuer: str
    client_id: str
    client_secret_file: str | None = None
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    user_claim: str = "preferred_username"
    groups_claim: str = "groups"


class AccessFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    groups: dict[str, Group] = {}
    users: dict[str, FileUser] = {}
    header: ProxyHeaders | None = None
    oidc: Provider | None = None

    def roles(self) -> dict[str, Role]:
        """Roles by group, in the order of the file: the first group that a user belongs to counts."""
        return {name: group.to_role() for name, group in self.groups.items()}


def read_access_file(path: str) -> AccessFile:
    """Raises InvalidConfigurationError that names the field."""
    try:
        found = msgspec.toml.decode(Path(path).read_bytes(), type=AccessFile)
        _check(found)
    except (OSError, ValueError) as error:
        raise InvalidConfigurationError(f"--access {path}: {error}") from error
    return found


def _check(found: AccessFile) -> None:
    if not found.groups:
        raise ValueError('it has no group: add one, for example [groups."*"] for every user')
    for name, group in found.groups.items():
        for masked in group.masked:
            if not _MASK.fullmatch(masked):
                raise ValueError(
                    f"groups.{name}.masked: {masked!r} begins with none of key, value, headers, key_record, record"
                )
    for name, user in found.users.items():
        if not user.password.startswith("scrypt:"):
            raise ValueError(f"users.{name}.password is not a hash: `python -m spark_log.console.access.passwords`")
        if ":" in name:
            raise ValueError(f"users.{name}: a name has no colon")
    if found.header is not None:
        if not found.header.proxies:
            raise ValueError("header.proxies is empty: any client could claim to be any user")
        found.header.networks()
    if found.oidc is not None:
        issuer = urlsplit(found.oidc.issuer)
        if issuer.scheme != "https" and issuer.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise ValueError("oidc.issuer must begin with https://")
