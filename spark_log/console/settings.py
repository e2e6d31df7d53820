"""Defines and checks the settings of a console, from its options and the access file."""

from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import urlsplit

from spark_log.console.access.access_file import AccessFile
from spark_log.console.access.roles import Allow
from spark_log.errors import InvalidConfigurationError
from spark_log.gateway.http.requests import LOOPBACK


class AuthMethod(StrEnum):
    """A method of authentication (docs/guides/console.md)."""

    TOKEN = "token"
    BASIC = "basic"
    HEADER = "header"
    OIDC = "oidc"


@dataclass(frozen=True)
class ConsoleSettings:
    """The settings of a console. `host` and `port` are the listen address. `public_url` is the address that browsers
    use if there is a proxy in front of the console.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    auth: AuthMethod = AuthMethod.TOKEN
    allow: frozenset[Allow] = frozenset()
    public_url: str | None = None
    access: AccessFile | None = None
    """The access file. Without it (only with the token method), the user may make every change that `allow` has."""


def checked(settings: ConsoleSettings, auth: AuthMethod | None) -> ConsoleSettings:
    """Return the settings with the authentication method, after a check that they have all that the method needs.

    `auth` is None if the user named no method. Then the console may listen only on addresses of this machine. Raises
    InvalidConfigurationError that says what to do.
    """
    if auth is None and settings.host not in LOOPBACK:
        raise InvalidConfigurationError(
            f"--host {settings.host}: other machines could reach the console. Choose how users prove who they are, for"
            " example --auth basic --access FILE (--auth token prints an address that works once), or listen on"
            " 127.0.0.1"
        )
    method = auth or AuthMethod.TOKEN
    access = settings.access
    needed = {
        AuthMethod.TOKEN: True,
        AuthMethod.BASIC: access is not None and bool(access.users),
        AuthMethod.HEADER: access is not None and access.header is not None,
        AuthMethod.OIDC: access is not None and access.oidc is not None,
    }
    if not needed[method]:
        tables = {"basic": "[users.NAME]", "header": "[header]", "oidc": "[oidc]"}
        raise InvalidConfigurationError(
            f"--auth {method} needs --access FILE with a table {tables[method]} and groups: docs/guides/console.md"
        )
    if settings.public_url is not None and urlsplit(settings.public_url).scheme not in ("http", "https"):
        raise InvalidConfigurationError(
            f"--public-url must begin with http:// or https://, got {settings.public_url!r}"
        )
    return replace(settings, auth=method)


def parse_allow(text: str) -> frozenset[Allow]:
    """Return the kinds of change in a text such as `produce,offsets`, or none for empty text."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(Allow))
    if unknown:
        raise InvalidConfigurationError(
            f"--allow: there is no kind of change {unknown[0]!r}: choose one of {', '.join(Allow)}"
        )
    return frozenset(map(Allow, names))
