"""Reads the TOML file of option --access: groups with their roles, and settings of authentication methods."""

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
    """A group of the access file with its role.

    `role` is viewer (no changes), operator (every change), or a list of the allowed changes. `masked` has the fields of
    messages that are hidden.
    """

    role: Literal["viewer", "operator"] | list[Allow] = "viewer"
    topics: tuple[str, ...] = ("*",)
    messages: bool = True
    masked: tuple[str, ...] = ()

    def to_role(self) -> Role:
        changes = {"viewer": frozenset[Allow](), "operator": EVERY_CHANGE}
        allows = changes[self.role] if isinstance(self.role, str) else frozenset(self.role)
        return Role(allows, self.topics, self.messages, frozenset(self.masked))


class FileUser(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A user for HTTP Basic. `password` is a hash that `python -m spark_log.console.access.passwords` prints."""

    password: str
    groups: tuple[str, ...] = ()


class ProxyHeaders(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The names of the headers that carry the user and the groups. Commas separate the groups.

    The headers are trusted only in requests from the addresses `proxies`.
    """

    proxies: list[str]
    user: str = "X-Forwarded-User"
    groups: str = "X-Forwarded-Groups"

    def networks(self) -> list[Network]:
        return [ipaddress.ip_network(proxy) for proxy in self.proxies]


class Provider(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An OpenID Connect provider. `client_secret_file` is a file with the client secret. Without it, the client is
    public.
    """

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
        """Return the roles by group, in the order of the file. The role of a user is that of the first of these groups
        to which the user belongs.
        """
        return {name: group.to_role() for name, group in self.groups.items()}


def read_access_file(path: str) -> AccessFile:
    """Read the file. Raises InvalidConfigurationError that names the invalid field."""
    try:
        found = msgspec.toml.decode(Path(path).read_bytes(), type=AccessFile)
        _check(found)
    except (OSError, ValueError) as error:
        raise InvalidConfigurationError(f"--access {path}: {error}") from error
    return found


def _check(access_file: AccessFile) -> None:
    if not access_file.groups:
        raise ValueError('it has no group: add one, for example [groups."*"] for every user')
    for name, group in access_file.groups.items():
        for masked in group.masked:
            if not _MASK.fullmatch(masked):
                raise ValueError(
                    f"groups.{name}.masked: {masked!r} begins with none of key, value, headers, key_record, record"
                )
    for name, user in access_file.users.items():
        if not user.password.startswith("scrypt:"):
            raise ValueError(f"users.{name}.password is not a hash: `python -m spark_log.console.access.passwords`")
        if ":" in name:
            raise ValueError(f"users.{name}: a name has no colon")
    if access_file.header is not None:
        if not access_file.header.proxies:
            raise ValueError("header.proxies is empty: any client could claim to be any user")
        access_file.header.networks()
    if access_file.oidc is not None:
        issuer = urlsplit(access_file.oidc.issuer)
        if issuer.scheme != "https" and issuer.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise ValueError("oidc.issuer must begin with https://")
