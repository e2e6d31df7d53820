"""Describes an API of the protocol in a gateway, and the arguments of its handler."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spark_log.gateway.access.access import EVERYTHING, Access
from spark_log.gateway.access.rights import Rule
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.limits.networks import network_of
from spark_log.gateway.protocol.request_limits import ORDINARY, RequestLimits
from spark_log.gateway.protocol.wire import Message, RequestHeader, read_request_header
from spark_log.gateway.services import Services
from spark_log.gateway.transactions.fencing_tokens import FencingTokens

ANONYMOUS = "User:ANONYMOUS"


@dataclass(frozen=True)
class Client:
    """The sender of a request."""

    client_id: str
    host: str
    software: str = ""
    """Name and version of the client's library (KIP-511), if the client has sent them."""
    fencing_tokens: FencingTokens = field(default_factory=FencingTokens)
    """The fencing tokens of the connection for transactional producers."""
    principal: str = ANONYMOUS
    """`User:` and the name in the client's certificate, or the name of the user that SASL has authenticated."""
    access: Access = EVERYTHING
    """Decides on the rights of the client."""
    order: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A lock of the connection, held while records go to the appender, so that they keep the order of the requests."""

    @property
    def checked_principal(self) -> str | None:
        """The principal if the gateway checks the rights of clients, otherwise None."""
        return None if self.access.rights is None else self.principal

    @property
    def user(self) -> str:
        """The name of the principal without its type, as quotas have it."""
        return self.principal.partition(":")[2]

    @property
    def key(self) -> str:
        """The principal and network. Each key has a share of the gateway's threads and memory for its requests."""
        return f"{self.principal}@{network_of(self.host)}"

    @property
    def zone(self) -> str | None:
        """The zone that the client id names, such as eu-1 in `zone=eu-1` or `app,zone=eu-1`."""
        for part in self.client_id.replace(";", ",").split(","):
            name, _, value = part.strip().partition("=")
            if name == "zone" and value:
                return value
        return None


_OWNER_FIELDS = ("group_id", "transactional_id", "v3_and_below_transactional_id")

Handler = Callable[[Services, Message, Client], Awaitable[Message | None]]
"""Answers a request, or returns None if the client expects no answer. Its part before the first `await` runs in the
order of the requests of a connection."""


def blocking(handler: Callable[[Services, Message, Client], Message]) -> Handler:
    """Return a handler that calls the blocking function `handler` in a thread of the API's lane."""

    async def handle(services: Services, request: Message, client: Client) -> Message:
        return await services.call(handler, services, request, client)

    return handle


@dataclass(frozen=True)
class Api:
    """An API of the protocol, and how a gateway serves it.

    `advertised` is the lowest and highest version that clients see. `served_from` is the lowest version that is served.
    `rights` are the rights that a client needs if the gateway checks rights. If `pipelined`, the next request of the
    connection may be handled before this one is answered. `limits` bound the size of a request. The handler's blocking
    calls use threads of `lane`.
    """

    request: type[Message]
    handler: Handler
    advertised: tuple[int, int]
    rights: Sequence[Rule]
    served_from: int | None = None
    pipelined: bool = False
    limits: RequestLimits = ORDINARY
    lane: Lane = Lane.ADMIN

    @cached_property
    def key(self) -> int:
        return int(self.request.API_KEY)

    @cached_property
    def name(self) -> str:
        """Kafka's name of the API, such as ListOffsets."""
        return self.request.__name__.removesuffix("Request")

    @cached_property
    def owner_field(self) -> str | None:
        """The field that has the group id or transactional id, or None if the requests have no such field."""
        return next((field for field in _OWNER_FIELDS if field in self.request._struct.fields), None)

    def is_flexible(self, version: int) -> bool:
        """Whether the header of a request of this version has tagged fields (KIP-482)."""
        return bool(self.request.flexible_version_q(version))

    def serves(self, version: int) -> bool:
        low, high = self.advertised
        return (low if self.served_from is None else self.served_from) <= version <= high


def read_header(frame: memoryview, apis: Mapping[int, Api]) -> RequestHeader:
    """Read the header of a request. Raises MalformedRequestError."""
    return read_request_header(frame, lambda key, version: key in apis and apis[key].is_flexible(version))
