"""How long a rebalance of a large group takes.

    python -m benchmarks.groups [--members 1000] [--partitions 1000] [--postgresql URL]

Members are simulated in this process, each with heartbeats of its own. Measured is one join, of a member that comes
last in the range assignor's order and so changes every member's target: from its first statement until the new target
of every member is in the store; then, for orientation, until every member has what it is to have, with all heartbeats
sent one after the other.
"""

import statistics
import time

import sqlalchemy as sa

from benchmarks.machine import describe_machine
from benchmarks.setup import clusters, parser
from spark_log.cluster.cluster import Cluster
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rules import EpochState, Member
from spark_log.groups.consumer.stored_values import Subscription
from spark_log.groups.membership import ConsumerMembership, MemberSettings
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic

JOIN_S_MAX = 2.0
"""The bar on SQLite."""

_SESSION_TIMEOUT_MS = 30 * 60 * 1000
TURNS = 3


def fill(cluster: Cluster, group_id: str, members: int) -> None:
    """Insert a group whose members have all joined, in one transaction."""
    said = Subscription(frozenset({"t"}), ("range",))

    def insert(connection: sa.Connection) -> None:
        now = cluster.store.clock(connection)
        rows.lock_or_make_group(connection, group_id, now)
        for number in range(members):
            member = Member(said.topics)
            until_ms = now.lease_ms + _SESSION_TIMEOUT_MS
            name = f"filled-{number:05}"
            epochs = EpochState(name, _SESSION_TIMEOUT_MS)
            row = rows.MemberRow(
                name, None, "benchmark", "here", said, member, _SESSION_TIMEOUT_MS, until_ms, now.clock_epoch, epochs
            )
            rows.insert_member(connection, group_id, row)
        connection.execute(t.consumer_group.update().values(generation=members, empty_since_ms=None))

    cluster.store.transact(insert)


def member(cluster: Cluster, group_id: str, member_id: str = "") -> ConsumerMembership:
    settings = MemberSettings("joining", "here", None, _SESSION_TIMEOUT_MS, _SESSION_TIMEOUT_MS)
    found = ConsumerMembership(cluster, group_id, settings, ["range"])
    found.member_id, found.generation = member_id, 0
    return found


def settle(members: list[ConsumerMembership], owned: dict[str, frozenset[TopicPartition]]) -> int:
    """Send heartbeats of all members in turn until each has its whole assignment; returns their number."""
    beats, waiting = 0, list(members)
    while waiting:
        again = []
        for one in waiting:
            answer = one.heartbeat(["t"], owned.get(one.member_id, ()))
            beats += 1
            owned[one.member_id] = answer.partitions
            if not answer.complete:
                again.append(one)
        waiting = again
    return beats


def measure(cluster: Cluster, name: str, members: int, partitions: int) -> float:
    create_topic(cluster, "t", partitions)
    fill(cluster, "g", members - 1)
    everybody = [member(cluster, "g", f"filled-{number:05}") for number in range(members - 1)]
    owned: dict[str, frozenset[TopicPartition]] = {}
    settle(everybody, owned)
    joins_s, rounds_s = [], []
    for _ in range(TURNS):
        joining = member(cluster, "g")
        began = time.perf_counter()
        joining.heartbeat(["t"], ())
        joins_s.append(time.perf_counter() - began)
        with cluster.store.snapshot() as connection:
            group = rows.read_group(connection, "g")
            targets = [row.member.target for row in rows.read_members(connection, "g")]
            moved = sum(row.member.target != owned.get(row.member_id) for row in rows.read_members(connection, "g"))
        assert group is not None and not group.group.stale and moved == members
        assert len(targets) == members and sum(map(len, targets)) == len(frozenset().union(*targets)) == partitions
        beats = settle([*everybody, joining], owned)
        rounds_s.append(time.perf_counter() - began)
        joining.leave()
        settle(everybody, owned)
    join_s, round_s = statistics.median(joins_s), statistics.median(rounds_s)
    print(
        f"{name}: one join into {members} members x {partitions} partitions, until every target is in the store:"
        f" {join_s * 1000:.0f} ms (worst {max(joins_s) * 1000:.0f}); until every member has it, {beats} heartbeats:"
        f" {round_s:.1f} s"
    )
    one = everybody[0]
    began = time.perf_counter()
    for _ in range(200):
        assert not one.keep_alive()
    print(f"{name}: a heartbeat that says nothing new: {(time.perf_counter() - began) / 200 * 1e6:.0f} us")
    return join_s


def main() -> int:
    options = parser(__doc__, rounds=None)
    options.add_argument("--members", type=int, default=1_000)
    options.add_argument("--partitions", type=int, default=1_000)
    chosen = options.parse_args()
    print(describe_machine())
    joins_s = []
    for store, address, _ in clusters(chosen):
        with Cluster.open(address) as cluster:
            joins_s.append(measure(cluster, store, chosen.members, chosen.partitions))
    if chosen.members == chosen.partitions == 1_000 and joins_s[0] > JOIN_S_MAX:
        print(f"slower than {JOIN_S_MAX} s")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
