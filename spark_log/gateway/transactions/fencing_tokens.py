"""Executes calls of a Kafka client only if its connection has the newest fencing token (`fencing_rules`)."""

import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from spark_log.failpoints import failpoint
from spark_log.gateway.services import Services
from spark_log.transactions import wire_transactions
from spark_log.transactions.fencing_rules import FencedConnectionError, FencingToken, Role
from spark_log.transactions.wire_transactions import WireProducer

T = TypeVar("T")

_HELD_MAX = 1_000
TIMEOUT_MS = 30_000
"""The timeout of the SQL transactions of a request."""


class TokenTakenError(Exception):
    """The connection had no valid fencing token, and has taken one now. The client has to send the request again."""


class FencingTokens:
    """Remembers the last fencing tokens that a connection has taken. A forgotten token is taken again when needed."""

    def __init__(self) -> None:
        self.connection_id = uuid.uuid4().hex
        """The id of this connection, unique among the connections of all gateways."""
        self._held: OrderedDict[tuple[str, int, Role], FencingToken] = OrderedDict()

    def keep(self, transactional_id: str, producer_id: int, token: FencingToken) -> None:
        self._held[transactional_id, producer_id, token.role] = token
        if len(self._held) > _HELD_MAX:
            self._held.popitem(last=False)

    async def call(
        self, services: Services, producer: WireProducer, role: Role, function: Callable[[FencingToken], T]
    ) -> T:
        """Call a blocking function with the connection's fencing token. Raises TokenTakenError if that is not valid."""
        held = self._held.get((producer.transactional_id, producer.producer_id, role))
        if held is not None:
            try:
                return await services.call(_passed_on, function, held)
            except FencedConnectionError:
                pass
        store = services.cluster.store
        taken = await services.call(wire_transactions.take_fencing_token, store, producer, role, timeout_ms=TIMEOUT_MS)
        self.keep(producer.transactional_id, producer.producer_id, taken)
        raise TokenTakenError


def _passed_on(function: Callable[[FencingToken], T], token: FencingToken) -> T:
    failpoint("gateway.transaction-request-read")
    return function(token)
