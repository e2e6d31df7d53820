"""Authenticates the users of the access file by name and password (HTTP Basic)."""

import asyncio
import base64
import hmac
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from spark_log.console.access.access_file import FileUser
from spark_log.console.access.authentication import Refused, user_with_role
from spark_log.console.access.passwords import hash_password, matches
from spark_log.console.access.roles import Role, User
from spark_log.console.access.sessions import Sessions
from spark_log.gateway.limits.networks import network_of

_REMEMBERED_S = 300
_REMEMBERED_MAX = 10_000
_AT_ONCE_MAX = 2
"""The maximum number of passwords that are checked at the same time. Each check takes a core and 16 MiB."""
_OF_ONE_ADDRESS_MAX = 16
"""The maximum number of passwords from one network that wait or are checked. They are checked one at a time, and
further ones are refused.
"""


class BasicAuthentication:
    """Checks the password of each request. A correct password is remembered for some minutes, as a keyed digest."""

    def __init__(self, users: Mapping[str, FileUser], roles: Mapping[str, Role]) -> None:
        self.sessions: Sessions | None = None
        self._users = users
        self._roles = roles
        self._key = secrets.token_bytes(32)
        self._right: dict[bytes, float] = {}
        self._nobody = hash_password(secrets.token_urlsafe())
        self._at_once = asyncio.Semaphore(_AT_ONCE_MAX)
        self._turns: dict[str, _Turns] = {}

    async def answer(self, request: Request) -> Response | None:
        return None

    async def user(self, request: Request) -> User:
        name, password = _credentials(request.headers.get("authorization", ""))
        user = self._users.get(name)
        network = network_of("" if request.client is None else request.client.host)
        if not await self._is_right(name, password, user, network) or user is None:
            raise Refused("A name and a password are needed.", {"WWW-Authenticate": 'Basic realm="spark-log"'})
        return user_with_role(name, user.groups, self._roles)

    async def _is_right(self, name: str, password: str, user: FileUser | None, network: str) -> bool:
        if not name:
            return False
        digest = hmac.digest(self._key, f"{name}:{password}".encode(errors="replace"), "sha256")
        if self._is_remembered(digest):
            return True
        async with self._turn(network), self._at_once:
            if self._is_remembered(digest):  # another request of the same browser may have checked it
                return True
            # the check takes as long for an unknown name as for a known one
            right = await run_in_threadpool(matches, password, self._nobody if user is None else user.password)
        if right and user is not None:
            if len(self._right) >= _REMEMBERED_MAX:
                self._right.clear()
            self._right[digest] = time.monotonic() + _REMEMBERED_S
        return right

    def _is_remembered(self, digest: bytes) -> bool:
        """Return whether the digest is of a correct password that is still remembered.

        Each use extends its time, so that wrong passwords of other clients do not delay a user who is working.
        """
        if self._right.get(digest, 0.0) <= time.monotonic():
            return False
        self._right[digest] = time.monotonic() + _REMEMBERED_S
        return True

    @asynccontextmanager
    async def _turn(self, network: str) -> AsyncGenerator[None]:
        """Wait for the other passwords from this network. Raises Refused if too many are waiting."""
        turns = self._turns.setdefault(network, _Turns())
        if turns.count >= _OF_ONE_ADDRESS_MAX:
            raise Refused("Too many passwords are being checked: try again.", {"Retry-After": "1"}, 429)
        turns.count += 1
        try:
            async with turns.lock:
                yield
        finally:
            turns.count -= 1
            if not turns.count:
                del self._turns[network]


@dataclass
class _Turns:
    """The passwords from one network that wait or are checked."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0


def _credentials(header: str) -> tuple[str, str]:
    """Return the name and the password of header Authorization, or two empty texts if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return name, password
