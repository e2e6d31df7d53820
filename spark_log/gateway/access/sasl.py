"""Implements the server's side of SASL mechanisms: PLAIN (RFC 4616) and SCRAM (RFC 5802).

A mechanism takes a token of the client and returns a token of the server. For an unknown user and for a wrong password
it raises `SaslFailedError` with the same text, after the same work.
"""

import secrets
from collections.abc import Callable
from typing import Protocol, TypeVar

from spark_log.cluster.security import scram
from spark_log.cluster.security.scram import Mechanism
from spark_log.cluster.security.users import find_credential
from spark_log.metadata.store import Store

T = TypeVar("T")
PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *(each.sasl_name for each in Mechanism))


class SaslFailedError(Exception):
    """The client could not authenticate. The text is for the client."""


class Exchange(Protocol):
    """The exchange of tokens for one authentication. `user` is set when it has succeeded."""

    user: str | None

    async def answer(self, token: bytes) -> bytes:
        """Return the server's answer to a token. Raises SaslFailedError."""


class Verifier:
    """Checks passwords and proofs with the users of the store. `call` runs a function in a thread."""

    def __init__(self, store: Store, call: "Call") -> None:
        self._store, self._call = store, call

    async def credential(self, user: str, mechanism: Mechanism) -> scram.Credential:
        return await self._call(lambda: find_credential(self._store, user, mechanism))

    async def is_password(self, user: str, password: str) -> bool:
        """Whether the password matches a credential of the user. All mechanisms are checked, to take equal time."""

        def check() -> bool:
            right = [
                scram.is_password(password, mechanism, find_credential(self._store, user, mechanism))
                for mechanism in Mechanism
            ]
            return any(right)

        return await self._call(check)


class Call(Protocol):
    """Runs a function in a thread."""

    async def __call__(self, function: Callable[[], T], /) -> T: ...


class PlainExchange:
    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self.user: str | None = None

    async def answer(self, token: bytes) -> bytes:
        try:
            acting_as, user, password = token.decode().split("\0")
        except ValueError:
            raise SaslFailedError("Invalid SASL/PLAIN message") from None
        if not user or not password or acting_as not in ("", user):
            raise SaslFailedError("Invalid SASL/PLAIN message")
        if not await self._verifier.is_password(user, password):
            raise SaslFailedError(_refusal(PLAIN))
        self.user = user
        return b""


class ScramExchange:
    def __init__(self, verifier: Verifier, mechanism: Mechanism) -> None:
        self._verifier, self._mechanism = verifier, mechanism
        self._begun: tuple[scram.ClientFirst, bytes, scram.Credential] | None = None
        self.user: str | None = None

    async def answer(self, token: bytes) -> bytes:
        try:
            if self._begun is None:
                first = scram.parse_client_first(token)
                credential = await self._verifier.credential(first.user, self._mechanism)
                challenge = scram.server_first(first, secrets.token_hex(16).encode(), credential)
                self._begun = first, challenge, credential
                return challenge
            first, challenge, credential = self._begun
            final = scram.server_final(first, challenge, token, self._mechanism, credential)
        except scram.ScramError as error:
            raise SaslFailedError(f"Invalid {self._mechanism.sasl_name} message: {error}") from None
        if final is None:
            raise SaslFailedError(_refusal(self._mechanism.sasl_name))
        self.user = first.user
        return final


def _refusal(mechanism: str) -> str:
    return f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"


def exchange_of(mechanism: str, verifier: Verifier) -> Exchange:
    """Return a new exchange of a mechanism, which is one of MECHANISMS."""
    if mechanism == PLAIN:
        return PlainExchange(verifier)
    return ScramExchange(verifier, next(each for each in Mechanism if each.sasl_name == mechanism))
