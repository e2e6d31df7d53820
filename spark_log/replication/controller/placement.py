"""Chooses brokers and log dirs for the replicas of new partitions. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_log.errors import InvalidReplicationFactorError


@dataclass(frozen=True)
class BrokerLoad:
    """A live broker: its rack, and the number of replicas in each of its live log dirs, by log dir id."""

    broker_id: int
    rack: str | None
    replicas_by_log_dir: Mapping[int, int]


def place_replicas(
    brokers: Sequence[BrokerLoad], partitions: int, replication_factor: int
) -> list[list[tuple[int, int]]]:
    """Return the AR of each new partition as (broker id, log dir id), the preferred leader first.

    Leaders are assigned round-robin, starting at the broker with the fewest replicas. Followers are on the next
    brokers, shifted by one more in each round, as in Kafka, so that the load of a dead broker spreads. The order of the
    brokers alternates between racks, and a rack gets a second replica of a partition only when every rack has one.
    Within its broker, a replica goes to the log dir with the fewest replicas. Raises InvalidReplicationFactorError if
    the factor is not a number from 1 to the number of brokers.
    """
    if isinstance(replication_factor, bool) or not isinstance(replication_factor, int) or replication_factor < 1:
        raise InvalidReplicationFactorError(
            f"replication_factor: expected a number of at least 1, got {replication_factor!r}"
        )
    if replication_factor > len(brokers):
        raise InvalidReplicationFactorError(
            f"replication_factor: {replication_factor} is more than the {len(brokers)} live broker(s) of the cluster"
        )
    ordered = _alternate_racks(brokers)
    count = len(ordered)
    first = min(range(count), key=lambda i: sum(ordered[i].replicas_by_log_dir.values()))
    racks = {broker.rack for broker in ordered}
    load = {broker.broker_id: dict(broker.replicas_by_log_dir) for broker in brokers}
    placement: list[list[tuple[int, int]]] = []
    for number in range(partitions):
        leader = (first + number) % count
        shift = (number // count) % max(1, count - 1)
        others = [(leader + 1 + (shift + i) % (count - 1)) % count for i in range(count - 1)]
        chosen = [leader]
        while len(chosen) < replication_factor:
            taken = {ordered[i].rack for i in chosen}
            allowed = (i for i in others if i not in chosen and (taken == racks or ordered[i].rack not in taken))
            chosen.append(next(allowed))
        assigned: list[tuple[int, int]] = []
        for index in chosen:
            dirs = load[ordered[index].broker_id]
            log_dir = min(dirs, key=lambda d: (dirs[d], d))
            dirs[log_dir] += 1
            assigned.append((ordered[index].broker_id, log_dir))
        placement.append(assigned)
    return placement


def _alternate_racks(brokers: Sequence[BrokerLoad]) -> list[BrokerLoad]:
    """Return the brokers in an order that takes one from each rack in turn."""
    racks: dict[str | None, list[BrokerLoad]] = {}
    for broker in sorted(brokers, key=lambda b: b.broker_id):
        racks.setdefault(broker.rack, []).append(broker)
    ordered: list[BrokerLoad] = []
    queues = [racks[rack] for rack in sorted(racks, key=lambda r: r or "")]
    while any(queues):
        ordered.extend(queue.pop(0) for queue in queues if queue)
    return ordered
