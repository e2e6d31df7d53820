"""Decides which quota applies to a client, and how long it waits, as in Kafka (KIP-13, KIP-55, KIP-124, KIP-612).

A quota belongs to an entity: a user, a client id, both, or an IP address; each by name or as the default of its type.
The most specific entity that has a value for a config decides, in the order of Kafka's documentation ("Enforcing client
quotas"). Clients that fall under the same names share one bucket.

A bucket is a leaky bucket. `used_until_s` is the time at which the use so far is paid for at the quota's rate:

    used_until_s' = max(used_until_s, now_s) + units / rate

A request waits while used_until_s > now_s + BURST_S. That holds for all connections of its clients, and the requests of
one bucket are admitted one after the other. So in any T seconds they use at most rate * (T + BURST_S) plus one request.
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_log.errors import IllegalArgumentError

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONNECTION_CREATION_RATE = "connection_creation_rate"

BURST_S = 1.0
"""The use ahead of the rate for which no client waits (quota.window.size.seconds)."""

_CLIENT_CONFIGS = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE})
_WHOLE = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE})
_NAME_BYTES_MAX = 1_000
_DEBT_S_MAX = 1e9
"""The maximum that one request adds to `used_until_s`. Without it, tiny rates would give times that overflow."""

Entity = tuple[tuple[str, str | None], ...]
"""Pairs of type and name, sorted by type, as in DescribeClientQuotas. The name None is the default of the type."""

Quotas = Mapping[Entity, Mapping[str, float]]
"""The values by entity and config. Byte rates are in bytes per second, connection_creation_rate is in connections per
second, and a request_percentage of 100 is one thread.
"""


@dataclass(frozen=True)
class Bucket:
    """The quota of the clients that share it: those of a user, of a client id, of both, or of an IP address.

    `rate` is in bytes, seconds of thread time, or connections per second. A changed quota is another bucket, which
    begins without use.
    """

    config: str
    names: tuple[tuple[str, str], ...]
    rate: float


def bucket_of_client(quotas: Quotas, config: str, user: str, client_id: str) -> Bucket | None:
    """Return the bucket of a config for a client, or None if the client is not limited."""
    for entity in _entities_of(user, client_id):
        value = quotas.get(entity, {}).get(config)
        if value is not None:
            given = {USER: user, CLIENT_ID: client_id}
            names = tuple((kind, given[kind]) for kind, _ in entity)
            return Bucket(config, names, value / 100 if config == REQUEST_PERCENTAGE else value)
    return None


def bucket_of_address(quotas: Quotas, address: str) -> Bucket | None:
    """Return the bucket of new connections from an IP address, or None if they are not limited."""
    for name in (address, None):
        value = quotas.get(((IP, name),), {}).get(CONNECTION_CREATION_RATE)
        if value is not None:
            return Bucket(CONNECTION_CREATION_RATE, ((IP, address),), value)
    return None


def used_until_s(before_s: float, now_s: float, units: float, rate: float) -> float:
    """Return the time at which the use is paid for after `units` more. Negative units refund unused charges."""
    return max(before_s, now_s) + min(units / rate, _DEBT_S_MAX)


def wait_s(until_s: float, now_s: float) -> float:
    """Return the seconds that the next request waits if the use of its bucket is paid for at `until_s`."""
    return max(0.0, until_s - now_s - BURST_S)


def entity_of(parts: Sequence[tuple[str, str | None]]) -> Entity:
    """Return the entity with these types and names. Raises IllegalArgumentError if Kafka has no such entity."""
    entity = tuple(sorted(parts, key=lambda part: part[0]))
    kinds = [kind for kind, _ in entity]
    if unknown := next((kind for kind in kinds if kind not in (USER, CLIENT_ID, IP)), None):
        raise IllegalArgumentError(f"a quota's entity type {unknown!r}: expected user, client-id or ip")
    if len(set(kinds)) < len(kinds):
        raise IllegalArgumentError("a quota's entity names a type twice")
    if not kinds or (IP in kinds and len(kinds) > 1):
        raise IllegalArgumentError("a quota's entity: expected user, client-id, both, or ip alone")
    for kind, name in entity:
        if name is not None and not 0 < len(name.encode(errors="surrogatepass")) <= _NAME_BYTES_MAX:
            raise IllegalArgumentError(f"a quota's {kind}: expected 1 to {_NAME_BYTES_MAX} bytes")
        if kind == IP and name is not None and not _is_address(name):
            raise IllegalArgumentError(f"a quota's ip {name!r}: expected an IP address")
    return entity


def named(entity: Entity) -> str:
    """Return the entity as text for people, such as "client-id app, user *"."""
    return ", ".join(f"{kind} {'*' if name is None else name}" for kind, name in entity)


def check_value(entity: Entity, config: str, value: float) -> None:
    """Raise IllegalArgumentError unless the entity can have this value."""
    allowed = {CONNECTION_CREATION_RATE} if entity[0][0] == IP else _CLIENT_CONFIGS
    if config not in allowed:
        raise IllegalArgumentError(f"quota {config!r}: expected {' or '.join(sorted(allowed))}")
    if not 0 < value < float("inf"):
        raise IllegalArgumentError(f"quota {config}: {value} is not a number above 0")
    if config in _WHOLE and value != int(value):
        raise IllegalArgumentError(f"quota {config}: {value} is not a whole number")


def matches(entity: Entity, exact: Mapping[str, str | None], present: frozenset[str], strict: bool) -> bool:
    """Whether a filter of DescribeClientQuotas finds the entity. The entity must have the types of `exact` with the
    names there (None is the default) and the types of `present` with any name; if `strict`, it has no other types.
    """
    parts = dict(entity)
    if not all(kind in parts and parts[kind] == name for kind, name in exact.items()):
        return False
    return all(kind in parts for kind in present) and (not strict or len(parts) == len(exact) + len(present))


def _entities_of(user: str, client_id: str) -> Iterator[Entity]:
    """Yield the entities that a client belongs to, the most specific one first."""
    for name in (user, None):
        for client in (client_id, None):
            yield ((CLIENT_ID, client), (USER, name))
        yield ((USER, name),)
    for client in (client_id, None):
        yield ((CLIENT_ID, client),)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
