"""Answers the SASL requests of a connection, SaslHandshake and SaslAuthenticate.

A connection is authenticated before any request but ApiVersions, and again when its session ends (KIP-368).
"""

import asyncio
from typing import TYPE_CHECKING

from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from spark_log import clock
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.gateway.access.sasl import Exchange, SaslFailedError, Verifier, exchange_of
from spark_log.gateway.api import Api, Client
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.protocol.error_codes import NONE
from spark_log.gateway.protocol.request_limits import TINY
from spark_log.gateway.protocol.wire import MalformedRequestError, Message, RequestHeader, encode_response, read_body

if TYPE_CHECKING:
    from spark_log.gateway.gateway_settings import GatewaySettings

_UNSUPPORTED_SASL_MECHANISM, _ILLEGAL_SASL_STATE, _SASL_AUTHENTICATION_FAILED = 33, 34, 58


async def _of_connection(_gateway: object, _request: Message, _client: Client) -> Message | None:
    raise AssertionError("the connection answers SASL requests")


APIS = (
    Api(SaslHandshakeRequest, _of_connection, advertised=(0, 1), limits=TINY, lane=Lane.LOGIN, rights=()),
    Api(SaslAuthenticateRequest, _of_connection, advertised=(0, 2), limits=TINY, lane=Lane.LOGIN, rights=()),
)  # fmt: skip
KEYS = frozenset(api.key for api in APIS)
_AUTHENTICATE = SaslAuthenticateRequest.API_KEY


class Login:
    """The SASL state of one connection.

    `user` is the authenticated user. If `failed`, the connection has to be closed after the answer is sent. If
    `takes_token`, the next frame is a token without a header, as after version 0 of SaslHandshake.
    """

    def __init__(self, settings: "GatewaySettings", verifier: Verifier) -> None:
        self._settings, self._verifier = settings, verifier
        self._exchange: Exchange | None = None
        self._mechanism: str | None = None
        self._ends_s: float | None = None
        self.user: str | None = None
        self.failed = False
        self.takes_token = False

    @property
    def expired(self) -> bool:
        """Whether the client has to authenticate again before another request."""
        return self._ends_s is not None and clock.monotonic_s() >= self._ends_s

    async def answer(self, header: RequestHeader, frame: memoryview) -> bytes:
        """Answer a SaslHandshake or SaslAuthenticate request. Raises MalformedRequestError."""
        api = next(each for each in APIS if each.key == header.api_key)
        if not api.serves(header.version):
            raise MalformedRequestError(f"{api.name} v{header.version} is not served")
        request = read_body(api.request, header.version, frame[header.body :])
        response = await self._authenticate(request) if api.key == _AUTHENTICATE else self._handshake(request)
        return encode_response(response, header.version, header.correlation_id)

    async def answer_token(self, token: bytes) -> bytes:
        """Answer a token without a header. The answer begins with its length."""
        assert self._exchange is not None
        try:
            answer = await self._step(self._exchange, token)
        except SaslFailedError:
            self.failed = True
            answer = b""
        self.takes_token = self._exchange is not None
        return len(answer).to_bytes(4, "big") + answer

    def _handshake(self, request: Message) -> Message:
        enabled = list(self._settings.sasl_mechanisms)
        code = NONE
        if request.mechanism not in enabled or self._mechanism not in (None, request.mechanism):
            code = _UNSUPPORTED_SASL_MECHANISM
            self.failed = True
        else:
            self._exchange = exchange_of(request.mechanism, self._verifier)
            self._mechanism = request.mechanism
            self.takes_token = request.version == 0
        return SaslHandshakeResponse(error_code=code, mechanisms=enabled)

    async def _authenticate(self, request: Message) -> Message:
        code, text, token = NONE, None, b""
        if self._exchange is None:
            code, text = _ILLEGAL_SASL_STATE, "SaslHandshake has to come first"
        else:
            try:
                token = await self._step(self._exchange, bytes(request.auth_bytes))
            except SaslFailedError as error:
                code, text = _SASL_AUTHENTICATION_FAILED, str(error)
        self.failed = code != NONE
        lifetime_ms = 0 if self._exchange is not None or self.failed else self._settings.connections_max_reauth_ms
        return SaslAuthenticateResponse(
            error_code=code, error_message=text, auth_bytes=token, session_lifetime_ms=lifetime_ms
        )

    async def _step(self, exchange: Exchange, token: bytes) -> bytes:
        """Pass the token to the mechanism. The exchange ends when the user is authenticated.

        Raises SaslFailedError, and ConnectionAbortedError if the users cannot be read now: then clients connect again.
        """
        try:
            answer = await exchange.answer(token)
        except SaslFailedError:
            await asyncio.sleep(self._settings.failed_authentication_delay_ms / 1000)
            raise
        except MetadataStoreUnavailableError as error:
            raise ConnectionAbortedError("the users cannot be read now") from error
        if exchange.user is not None:
            if self.user not in (None, exchange.user):
                raise SaslFailedError("Cannot change principals during re-authentication")
            self.user, self._exchange = exchange.user, None
            lifetime_ms = self._settings.connections_max_reauth_ms
            self._ends_s = clock.monotonic_s() + lifetime_ms / 1000 if lifetime_ms else None
        return answer
