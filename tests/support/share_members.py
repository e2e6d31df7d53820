"""Members of share groups in this process, which poll and acknowledge without a client."""

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.groups.share import rows
from spark_log.groups.share.acquisition_rules import Request
from spark_log.groups.share.members import ShareAnswer, ShareHeartbeat, leave_share_group, share_heartbeat
from spark_log.groups.share.polling import Result, SharePolls
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.rules import Acknowledgement, AcknowledgeType, Range
from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata.store import Attempt


def set_lock_ms(cluster: Cluster, lock_ms: int) -> None:
    """Set the time that locks of records last, and the least that a group may set."""
    names = ("group.share.min.record.lock.duration.ms", "group.share.record.lock.duration.ms")
    alter_settings(cluster, dict.fromkeys(names, str(lock_ms)))


class ShareMember:
    """A member of a share group. It joins when it is made."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[str] = ("t",),
        group: str = "workers",
        member: str = "m1",
        polls: SharePolls | None = None,
    ) -> None:
        self.cluster, self.group, self.member = cluster, group, member
        self._topics = frozenset(topics)
        self._polls = polls or SharePolls(cluster, ShareReads(cluster))
        self.join()

    def join(self) -> None:
        """Send a heartbeat that joins: the assignment is the present one."""
        heartbeat = ShareHeartbeat(self.group, self.member, 0, self._topics, None, "client", "host")
        self.answer: ShareAnswer = share_heartbeat(self.cluster, heartbeat)
        self.assigned: dict[Key, str] = {
            (fact.topic_id, number): name
            for name, fact in (self.answer.assignment or {}).items()
            for number in range(fact.partition_count)
        }

    def poll(self, records_max: int = 500, timeout_s: float = 0.0) -> dict[Key, list[Range]]:
        """Acquire records, and return their ranges by partition."""
        self.last = self.result(records_max, timeout_s)
        return {taken.key: [part for part, _ in taken.parts] for taken in self.last.taken}

    def result(self, records_max: int = 500, timeout_s: float = 0.0) -> Result:
        """Acquire records."""
        request = Request(self.member, records_max, whole_batches=False)
        return self._polls.poll(self.group, request, self.assigned, timeout_s=timeout_s)

    def values(self) -> dict[tuple[int, int], str]:
        """Return the values of the records of the last poll, by partition and offset."""
        return {
            (taken.key[1], row["offset"]): row["value"].decode()
            for taken in self.last.taken
            for _, records in taken.parts
            for row in records.to_pylist()
        }

    def acknowledge(self, acquired: dict[Key, list[Range]], kind: AcknowledgeType, delay_ms: int = 0) -> Result:
        acks = {
            key: [Acknowledgement(r.first, r.end, r.lock, self.member, kind, delay_ms) for r in ranges]
            for key, ranges in acquired.items()
        }
        return self._polls.acknowledge(self.group, self.member, acks)

    def leave(self) -> None:
        leave_share_group(self.cluster.store, self.group, self.member)


def move_lock_ends(cluster: Cluster, by_ms: int, group: str = "workers") -> None:
    """Let the group's locks end so much earlier, as if this time had passed for them."""

    def move(connection: sa.Connection, _attempt: Attempt) -> None:
        now = cluster.store.clock(connection)
        for key in rows.offers_of(rows.ask_offers(connection, group)):
            row = rows.row_of(rows.ask_row(connection, group, key, lock=True), group, key, now)
            assert row is not None
            ranges = tuple(r._replace(until_ms=r.until_ms - by_ms) if r.lock > 0 else r for r in row.window.ranges)
            rows.save(connection, [replace(row, window=replace(row.window, ranges=ranges))], now)

    cluster.store.transact(move, announce=True)
