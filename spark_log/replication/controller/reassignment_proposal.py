"""Proposes which replicas to move so that partitions are spread evenly over a set of brokers. Pure.

`placement.place_replicas` places new partitions. Here the replicas exist, and each move copies a replica. So replicas
only move away from brokers that are excluded or have too many replicas of a topic, or from a rack that has a second
replica of a partition while another rack has none.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from spark_log.errors import InvalidReplicationAssignmentError
from spark_log.ids import TopicPartition
from spark_log.replication.controller.placement import BrokerLoad

Assignments = Mapping[TopicPartition, Sequence[int]]


def propose(
    assignments: Assignments, brokers: Sequence[BrokerLoad], replication_factor: int | None = None
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the proposed AR of each partition on these brokers, the preferred leader first.

    The numbers of a topic's replicas on two brokers differ by at most one, unless racks forbid it. The same holds for
    the topic's preferred leaders. Without `replication_factor`, each partition keeps its own factor. Raises
    InvalidReplicationAssignmentError if there are too few brokers.
    """
    racks = {broker.broker_id: broker.rack for broker in brokers}
    total = Counter({b.broker_id: sum(b.replicas_by_log_dir.values()) for b in brokers})
    led: Counter[int] = Counter()
    proposed: dict[TopicPartition, tuple[int, ...]] = {}
    for topic in sorted({tp.topic for tp in assignments}):
        mine = {tp: assignments[tp] for tp in sorted(assignments) if tp.topic == topic}
        factors = {
            tp: len(replicas) if replication_factor is None else replication_factor for tp, replicas in mine.items()
        }
        for tp, factor in factors.items():
            if not 1 <= factor <= len(racks):
                raise InvalidReplicationAssignmentError(f"brokers: {tp} needs {factor} of them, got {sorted(racks)}")
        chosen = _spread(mine, factors, racks, total)
        for tp, brokers_of in chosen.items():
            total.update(brokers_of)
            total.subtract(mine[tp])
        proposed.update(_order(mine, chosen, led))
    return proposed


def moved_bytes(before: Assignments, after: Assignments, sizes: Mapping[TopicPartition, int]) -> int:
    """Return the number of bytes to copy for a move from `before` to `after`. `sizes` has the bytes of one replica."""
    return sum(len(set(after[tp]) - set(before[tp])) * sizes.get(tp, 0) for tp in after)


def _spread(
    current: Assignments,
    factors: Mapping[TopicPartition, int],
    racks: Mapping[int, str | None],
    total: Mapping[int, int],
) -> dict[TopicPartition, list[int]]:
    """Return the brokers of the replicas of each partition of a topic.

    `current` has only partitions of that topic. `total` counts the replicas of all topics on each broker.
    """
    load: Counter[int] = Counter(dict.fromkeys(racks, 0))
    chosen: dict[TopicPartition, list[int]] = {}
    for tp, replicas in current.items():
        kept: list[int] = []
        for broker in (*replicas, *replicas):  # twice: a rack may get a second replica once every rack has one
            if broker in racks and len(kept) < factors[tp] and _fits(broker, kept, racks):
                kept.append(broker)
        chosen[tp] = kept
        load.update(kept)
    for tp, kept in chosen.items():
        while len(kept) < factors[tp]:
            candidates = [broker for broker in racks if _fits(broker, kept, racks)]
            emptiest = min(candidates, key=lambda b: (load[b], b not in current[tp], total[b], b))
            kept.append(emptiest)
            load[emptiest] += 1
    levelling = True
    while levelling:
        levelling = sum(_level(kept, load, racks) for kept in chosen.values()) > 0
    return chosen


def _level(kept: list[int], load: Counter[int], racks: Mapping[int, str | None]) -> bool:
    """Move one of these replicas to a broker with at least two fewer, if racks allow it. Return whether one moved."""
    for at, source in enumerate(kept):
        others = kept[:at] + kept[at + 1 :]
        for target in sorted(racks, key=lambda b: (load[b], b)):
            if load[source] - load[target] >= 2 and _fits(target, others, racks):
                kept[at] = target
                load[source] -= 1
                load[target] += 1
                return True
    return False


def _fits(broker: int, others: Sequence[int], racks: Mapping[int, str | None]) -> bool:
    """Whether a broker may get a replica in addition to `others`. A rack gets a second only if every rack has one."""
    taken = {racks[other] for other in others}
    return broker not in others and (racks[broker] not in taken or taken == set(racks.values()))


def _order(
    current: Assignments, chosen: Mapping[TopicPartition, list[int]], led: Counter[int]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the AR of each partition in its old order, but with other preferred leaders if that spreads them evenly.

    `led` counts the preferred leaders of all topics on each broker. This function updates it.
    """
    leaders: dict[TopicPartition, int] = {}
    mine: Counter[int] = Counter()
    for tp, brokers in chosen.items():
        was = {broker: at for at, broker in enumerate(current[tp])}
        brokers.sort(key=lambda broker, was=was: was.get(broker, len(was)))  # type: ignore[misc]
        leaders[tp] = brokers[0]
        mine[brokers[0]] += 1
    moved = True
    while moved:
        moved = False
        for tp, brokers in chosen.items():
            best = min(brokers, key=lambda broker: (mine[broker], led[broker]))
            if mine[leaders[tp]] - mine[best] >= 2:
                mine[leaders[tp]] -= 1
                mine[best] += 1
                leaders[tp] = best
                moved = True
    led.update(mine)
    return {tp: (leaders[tp], *(b for b in brokers if b != leaders[tp])) for tp, brokers in chosen.items()}
