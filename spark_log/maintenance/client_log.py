"""Provides the log of a process that appends, with replication and with the loop that keeps its Delta tables fresh."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.config import ClusterSettings
from spark_log.errors.first_failure import FirstFailure
from spark_log.ids import TopicPartition
from spark_log.log.append.write_ids import Writer
from spark_log.log.log import Log
from spark_log.log.reader import LogReader
from spark_log.maintenance.removal.expired_records import Expired, ExpiredWatch
from spark_log.maintenance.rewrite.table_loop import TableLoop
from spark_log.maintenance.rewrite.tail_seal import seal, try_seal
from spark_log.replication.replicas.followers import Followers
from spark_log.replication.replicas.replicated_append import ReplicatedAppends
from spark_log.tables.publication import try_publish

_DRAIN_S = 10.0


class ClientLog(Log):
    """A `Log` that is complete: an append reaches the replicas, and the topic's Delta tables.

    >>> log = ClientLog(Cluster.open("/data/log"))                            # doctest: +SKIP
    >>> log.append(topic, [Records(0, table)])                                # doctest: +SKIP
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        settings: ClusterSettings | None = None,
        holder: str = "log",
        in_thread: bool = False,
        inline_bytes_min: tuple[int, int] = (0, 0),
        internal: bool = False,
    ) -> None:
        """With `in_thread` tails are sealed and files are published in a thread, for a process that appends repeatedly.

        `inline_bytes_min` has lower bounds of inline.max.bytes and inline.tail.bytes for the appends of this log to
        topics that leave these configs at their defaults. They serve a process that gathers the batches of many
        clients: a file for each batch costs several times as much as a blob. `internal` is passed to `Log`.
        """
        self._options: dict[str, Any] = {
            "settings": settings, "holder": holder, "in_thread": in_thread, "inline_bytes_min": inline_bytes_min,
            "internal": internal,
        }  # fmt: skip
        writer = _writer(cluster, holder, settings)
        self._loop = TableLoop(cluster, writer, in_thread=in_thread, tail_bytes_min=inline_bytes_min[1])
        self._followers = Followers(cluster, stands_in=True)
        self._expired = ExpiredWatch(cluster.store)
        super().__init__(
            cluster,
            writer,
            ReplicatedAppends(cluster, settings),
            (self._followers, self._expired, self._loop),
            tail_limit=_LongTails(cluster, writer, settings),
            inline_max_bytes_min=inline_bytes_min[0],
            internal=internal,
        )

    def close(self, *, more_to_come: bool = False) -> None:
        """Copy to the replicas that lag behind this log's appends, if no coordinator runs, and do a last round of the
        table loop, which seals all tails in this case. Copies that take longer than 10 seconds are abandoned, and the
        round starts no work after 10 seconds.

        With `more_to_come` (after a micro-batch) another log will append to the same topics: tails are sealed as often
        as delta.max.lag.ms needs, not after every append.

        All stores are closed, home first, even if one of them fails. The first error is raised at the end.
        """
        with FirstFailure() as failure:
            with failure.attempt():
                self._close(more_to_come=more_to_come)
            for other in list(self._others.values()):
                with failure.attempt():
                    cast(ClientLog, other).close(more_to_come=more_to_come)

    def _close(self, *, more_to_come: bool) -> None:
        """Close the log of this store only."""
        if self._followers.woken:
            self._followers.drain(_DRAIN_S)
            self._followers.close(_DRAIN_S)
        self._loop.close(_DRAIN_S, more_to_come=more_to_come)
        super().close()

    def _open_at(self, cluster: Cluster) -> "ClientLog":
        return ClientLog(cluster, **self._options)

    def seal_at_close(self, topics: Iterable[Topic]) -> None:
        """Seal the tails of these topics at close, as if this log had appended to them. This serves the micro-batches
        of a query, each of which has its own log.
        """
        for topic in topics:
            self.at(topic.store_id)._loop.watch([topic])

    def take_expired(self) -> list[Expired]:
        """Return the records that were older than retention.ms when they were appended, since the last call."""
        return [expired for log in self._logs() for expired in log._expired.take()]

    def stop_sealing(self) -> None:
        """Make a running or later `close` in another thread start no further sealing."""
        for log in self._logs():
            log._loop.stop_after_current_tail()

    def _logs(self) -> "list[ClientLog]":
        """Return this log, and those of other stores that it has opened."""
        return [self, *cast("list[ClientLog]", list(self._others.values()))]

    def seal(self, topic: Topic, partitions: Iterable[int]) -> int:
        """Seal the tails of the partitions now, and publish; returns the number of new segment files.

        It is 0 for a topic that has been deleted, or deleted and created again.
        """
        if topic.store_id != self.cluster.store_id:
            return self.at(topic.store_id).seal(topic, partitions)
        files = sum(seal(self.cluster, self._writer, topic, partition) for partition in partitions)
        if files:
            try_publish(self.cluster, [topic])
        return files


class TaskReader(LogReader):
    """Plans reads that other processes execute. Long tails are sealed first, because a plan carries their bytes."""

    def __init__(self, cluster: Cluster, *, holder: str) -> None:
        self._holder = holder
        self._writer = _writer(cluster, holder)
        super().__init__(cluster, _LongTails(cluster, self._writer))

    def close(self) -> None:
        """Release the write ids of all stores. The first error is raised at the end."""
        with FirstFailure() as failure:
            for close in (self._writer.close, *(other.close for other in list(self._others.values()))):
                with failure.attempt():
                    close()

    def _open_at(self, cluster: Cluster) -> "TaskReader":
        return TaskReader(cluster, holder=self._holder)


class _LongTails:
    """Seals long inline tails before a plan is sent to other processes, because the plan carries their bytes.

    Implements `TailLimit` for plan.inline.bytes.per.task.max and plan.inline.bytes.max.
    """

    def __init__(self, cluster: Cluster, writer: Writer, settings: ClusterSettings | None = None) -> None:
        self._cluster, self._writer, self._settings = cluster, writer, settings

    def too_long(self, sizes: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the longest tails, chosen so that the other tails stay within the limits of a plan."""
        settings = self._settings or self._cluster.store.settings
        excess = sum(sizes.values()) - settings.plan_inline_bytes_max
        chosen: list[TopicPartition] = []
        for partition, size in sorted(sizes.items(), key=lambda item: -item[1]):
            if size <= settings.plan_inline_bytes_per_task_max and excess <= 0:
                break
            chosen.append(partition)
            excess -= size
        return chosen

    def seal(self, topic: Topic, partition: int) -> bool:
        """Seal a tail. A failure is logged, not raised: the read does not depend on it."""
        return bool(try_seal(self._cluster, self._writer, topic, partition))


def _writer(cluster: Cluster, holder: str, settings: ClusterSettings | None = None) -> Writer:
    return Writer(cluster.store, holder, (settings or cluster.store.settings).producer_write_id_lease_ms)
