"""Tracks which gateways are alive, and chooses the one that a client should use for a partition or a group.

Any gateway serves any request. Clients send the records of a partition to only one gateway, which can therefore append
them together.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import sqlalchemy as sa

from spark_log.gateway.protocol.error_codes import NONE
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import GATEWAY
from spark_log.metadata.store import Store

_KEPT_AFTER_LEASE_MS = 3_600_000
_LEADER_NOT_AVAILABLE = 5


@dataclass(frozen=True)
class LiveGateway:
    """A gateway that clients see as a broker."""

    gateway_id: int
    host: str
    port: int
    zone: str | None


class GatewaySession:
    """Holds the lease of the gateway of this process. Used by one thread.

    A gateway that is started again at the same address has the same id, like a Kafka broker.
    """

    def __init__(self, store: Store, host: str, port: int, zone: str | None, duration_ms: int) -> None:
        self._store, self._host, self._port, self._zone = store, host, port, zone
        self._duration_ms = duration_ms
        self._holder = f"{socket.gethostname()}-{os.getpid()}"
        self.gateway_id = -1

    def renew(self) -> None:
        """Begin the lease, or renew it. A lease that has ended begins again with the same id."""

        def body(connection: sa.Connection) -> int:
            now = self._store.clock(connection)
            lease = {"lease_until_ms": now.lease_ms + self._duration_ms, "lease_clock_epoch": now.clock_epoch}
            here = t.gateway.update().where(GATEWAY.gateway_id == self.gateway_id)
            if self.gateway_id >= 0 and connection.execute(here.values(lease)).rowcount:
                return self.gateway_id
            values = {"host": self._host, "port": self._port, "zone": self._zone, "holder": self._holder, **lease}
            at_this_address = (GATEWAY.host == self._host) & (GATEWAY.port == self._port)
            known = connection.execute(sa.select(sa.func.max(GATEWAY.gateway_id)).where(at_this_address)).scalar_one()
            if known is not None:
                connection.execute(t.gateway.update().where(GATEWAY.gateway_id == known).values(values))
                return int(known)
            old = (GATEWAY.lease_clock_epoch != now.clock_epoch) | (
                GATEWAY.lease_until_ms < now.lease_ms - _KEPT_AFTER_LEASE_MS
            )
            connection.execute(t.gateway.delete().where(old))
            found = connection.execute(t.gateway.insert().returning(GATEWAY.gateway_id), values)
            return int(found.scalar_one())

        self.gateway_id = self._store.transact(body, announce=True)

    def end(self) -> None:
        """End the lease at once, unless another process has taken it over."""
        mine = (GATEWAY.gateway_id == self.gateway_id) & (GATEWAY.holder == self._holder)
        over = t.gateway.update().where(mine).values(lease_until_ms=0)
        self._store.transact(lambda connection: connection.execute(over), announce=True)


def read_live_gateways(store: Store, connection: sa.Connection) -> list[LiveGateway]:
    """Return the gateways whose leases have not ended, in the order of their ids."""
    now = store.clock(connection)
    return [
        LiveGateway(row.gateway_id, row.host, row.port, row.zone)
        for row in connection.execute(sa.select(t.gateway).order_by(GATEWAY.gateway_id))
        if not now.expired(row.lease_until_ms, row.lease_clock_epoch)
    ]


def choose_gateway(gateways: Sequence[LiveGateway], zone: str | None, *key: object) -> LiveGateway | None:
    """Return the gateway for a partition or a group, by rendezvous hashing: few keys move when a gateway comes or goes.

    All clients of a zone get the same gateway, one in their zone if it has any. Return None if no gateway is alive: the
    calling gateway has just started, or could not renew its lease.
    """
    near = [each for each in gateways if zone is not None and each.zone == zone] or gateways
    return max(near, key=lambda each: (_weight(each.gateway_id, *key), each.gateway_id), default=None)


def partition_fields(leader: LiveGateway | None, number: int, leader_epoch: int | None) -> dict[str, object]:
    """Return the fields of a partition in descriptions of topics. A gateway is its leader and only replica."""
    nodes = [] if leader is None else [leader.gateway_id]
    return {
        "error_code": NONE if nodes else _LEADER_NOT_AVAILABLE,
        "partition_index": number,
        "leader_id": next(iter(nodes), -1),
        "leader_epoch": -1 if leader_epoch is None else leader_epoch,
        "replica_nodes": nodes,
        "isr_nodes": nodes,
        "offline_replicas": [],
    }


def _weight(*parts: object) -> bytes:
    return blake2b("\0".join(map(str, parts)).encode(errors="surrogatepass"), digest_size=8).digest()
