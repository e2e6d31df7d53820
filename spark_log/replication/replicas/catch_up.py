"""Lets a follower catch up: copies the segments that its replica lacks, whole and in order (invariant 10).

A run of files is copied into the replica's log dir. Then one transaction moves the LEO over these files and over the
blobs that follow, if nothing has changed since the run was planned: same leader epoch, same LEO, same segments. So a
second process that copies the same replica, an election, a seal or a kill wastes at most one run. The files of a wasted
run are named by the metadata, or are orphans. Nothing is deleted here.
"""

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field

import sqlalchemy as sa

from spark_log.cluster.brokers import alive_log_dirs
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import ANSWER_S_MAX, LogDir, LogDirInfo, segment_path
from spark_log.cluster.log_dir_failures import report_failure
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    NotLeaderForPartitionError,
    SparkLogError,
    UnknownTopicOrPartitionError,
)
from spark_log.failpoints import failpoint
from spark_log.ids import LogDirId
from spark_log.log.append.encoding import LOG_DIR_FAILURES
from spark_log.log.partitions.partition_rows import lock_partitions, read_partition, save_partitions
from spark_log.log.partitions.replication_rules import CopiedRange, PartitionState, Replica, advance_follower
from spark_log.log.segments.segment_copy import SegmentFile, copy_segment, is_whole
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.metadata.store import READ_TIMEOUT_MS
from spark_log.process import ask_in_thread
from spark_log.replication.replicas.throttle import Throttle
from spark_log.tables.publication import try_publish

RUN_FILES_MAX = 64
RUN_BYTES_MAX = 64 * 1024 * 1024
"""A run ends with the file that makes it as large as this, or after RUN_FILES_MAX files. So the LEO, and with it the
high watermark, moves often.
"""

_OVERTAKEN_MAX = 10
"""The copy fails after this number of successive runs without progress, in which the partition changed or nothing could
be copied.
"""


@dataclass(frozen=True)
class _Piece:
    """A segment file of offsets [base_offset, end_offset), and the log dirs from which to copy it, the best first."""

    base_offset: int
    end_offset: int
    name: str
    file: SegmentFile
    sources: tuple[LogDirId, ...]


@dataclass
class _Copied:
    """The number of pieces of a run that are in the log dir now. `error` is the error that ended the run early."""

    pieces: int = 0
    error: BaseException | None = None


def catch_up(cluster: Cluster, topic: Topic, partition: int, broker_id: int) -> Replica:
    """Copy all records up to the log end offset at the time of the call to a replica, and publish them.

    Return the replica after that. Files that were copied before an error stay. Raises UnknownTopicOrPartitionError if
    there is no such replica, CorruptRecordError if no other replica has an undamaged copy of a segment,
    StorageUnavailableError or LogDirMismatchError if the replica's log dir fails (which is reported to the controller),
    and NotLeaderForPartitionError if the partition keeps changing.
    """
    copying = ReplicaCopy(cluster, topic, partition, broker_id)
    try:
        return copying.run()
    finally:
        if copying.moved:
            try_publish(cluster, [topic])


class _StoppedError(Exception):
    pass


@dataclass
class ReplicaCopy:
    """Copies one replica, without publication. `moved` tells whether its LEO or the ISR has changed.

    When `stop` is set, `run` returns early.
    """

    cluster: Cluster
    topic: Topic
    partition: int
    broker_id: int
    throttle: Throttle | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    moved: bool = False

    def run(self) -> Replica:
        """Copy all records up to the log end offset at the time of the call.

        Return the replica after that. Raises the errors of `catch_up`.
        """
        goal: int | None = None
        overtaken = 0
        while True:
            state, replica, pieces = self.plan()
            goal = state.log_end_offset if goal is None else min(goal, state.log_end_offset)
            finished = replica.log_end_offset == state.log_end_offset and replica.in_sync
            if finished or self.stop.is_set():
                return replica
            copied = self.copy(replica, pieces)
            try:
                after = self.commit(state, replica, pieces[: copied.pieces])
            except NotLeaderForPartitionError:
                overtaken += 1
                if overtaken >= _OVERTAKEN_MAX:
                    raise
                continue  # plan again: a segment that could not be copied may have been truncated
            now = after.replica(self.broker_id)
            assert now is not None
            overtaken = overtaken + 1 if now == replica else 0
            if isinstance(copied.error, _StoppedError):
                return now
            if copied.error is not None:
                raise copied.error
            if now.log_end_offset >= goal:
                return now
            if overtaken >= _OVERTAKEN_MAX:
                raise NotLeaderForPartitionError(
                    f"{self.topic.name}-{self.partition}: broker {self.broker_id} finds nothing to copy from"
                    f" {now.log_end_offset} on"
                )

    def plan(self) -> tuple[PartitionState, Replica, list[_Piece]]:
        """Return the partition, the replica, and the next run of files that the replica lacks, of one snapshot."""
        key = (self.topic.topic_id, self.partition)

        def read(connection: sa.Connection) -> tuple[PartitionState, Replica, list[_Piece]]:
            state = read_partition(connection, key)
            replica = state.replica(self.broker_id) if state else None
            if state is None or replica is None:
                raise UnknownTopicOrPartitionError(
                    f"partition {self.topic.name}-{self.partition}: broker {self.broker_id} has no replica of it"
                )
            here = (SEGMENT.topic_id == key[0]) & (SEGMENT.partition == key[1]) & ~SEGMENT.inline
            query = (
                sa.select(SEGMENT.base_offset, SEGMENT.end_offset, SEGMENT.name, SEGMENT.bytes, SEGMENT.checksum)
                .where(here, SEGMENT.base_offset >= replica.log_end_offset)
                .order_by(SEGMENT.base_offset)
                .limit(RUN_FILES_MAX)
            )
            alive = alive_log_dirs(connection, self.cluster.store.clock(connection))
            # first live replicas, because mounts of dead ones may hang; of these first those in sync
            others = sorted(
                (other for other in state.replicas if other.broker_id != self.broker_id),
                key=lambda other: (other.log_dir_id not in alive, not other.in_sync),
            )
            pieces: list[_Piece] = []
            size = 0
            for row in connection.execute(query):
                file = SegmentFile(segment_path(self.topic.folder, self.partition, row.name), row.bytes, row.checksum)
                sources = tuple(LogDirId(o.log_dir_id) for o in others if o.log_end_offset >= row.end_offset)
                pieces.append(_Piece(row.base_offset, row.end_offset, row.name, file, sources))
                size += row.bytes
                if size >= RUN_BYTES_MAX:
                    break
            return state, replica, pieces

        return self.cluster.store.read(read)

    def copy(self, replica: Replica, pieces: Sequence[_Piece]) -> _Copied:
        """Copy the files into the replica's log dir, in order, up to the first failure.

        The result has the error. A failure of the replica's log dir is reported to the controller.
        """
        copied = _Copied()
        if not pieces:
            return copied
        try:
            infos = self.cluster.log_dirs()
            target = self.cluster.log_dir(infos[LogDirId(replica.log_dir_id)])
            for piece in pieces:
                if self.stop.is_set():
                    raise _StoppedError
                if _has_file(target, piece.file):
                    # the file's writer may have been killed before it synced the folders to disk
                    target.sync(piece.file.path, ancestors=True)
                else:
                    sources = (self._open(infos[log_dir_id]) for log_dir_id in piece.sources if log_dir_id in infos)
                    copy_segment((found for found in sources if found is not None), target, piece.file, self._pace)
                    failpoint("copy.file-written")
                copied.pieces += 1
        except LOG_DIR_FAILURES as error:  # of the target: `copy_segment` skips sources that fail
            copied.error = error
            size = pieces[copied.pieces].file.bytes
            report_failure(self.cluster.store, LogDirId(replica.log_dir_id), size)
        except (_StoppedError, SparkLogError, OSError) as error:
            copied.error = error
        return copied

    def commit(self, state: PartitionState, replica: Replica, pieces: Sequence[_Piece]) -> PartitionState:
        """Move the replica's LEO over the pieces, which its log dir now has, and over the blobs that follow.

        Return the new state of the partition. Raises NotLeaderForPartitionError if the partition has changed since the
        run was planned, and UnknownTopicOrPartitionError if it was deleted.
        """
        start = replica.log_end_offset
        end = pieces[-1].end_offset if pieces else start
        names = tuple(piece.name for piece in pieces)
        made = CopiedRange(self.broker_id, state.leader_epoch, start, end, names, replica.log_dir_id)
        key = (self.topic.topic_id, self.partition)
        here = (SEGMENT.topic_id == key[0]) & (SEGMENT.partition == key[1]) & ~SEGMENT.inline
        inside = sa.select(SEGMENT.name).where(here, SEGMENT.base_offset >= start, SEGMENT.base_offset < end)
        following = sa.select(SEGMENT.base_offset).where(here, SEGMENT.base_offset >= end)

        def body(connection: sa.Connection) -> tuple[PartitionState, PartitionState]:
            before = lock_partitions(connection, [key])
            if key not in before:
                raise UnknownTopicOrPartitionError(f"partition {self.topic.name}-{self.partition}: deleted meanwhile")
            names_now = list(connection.execute(inside.order_by(SEGMENT.base_offset)).scalars())
            next_file = connection.execute(following.order_by(SEGMENT.base_offset).limit(1)).scalar()
            alive = alive_log_dirs(connection, self.cluster.store.clock(connection))
            after = advance_follower(
                before[key],
                made,
                names_now,
                # before the next file there are only blobs, and offsets that retention has deleted
                before[key].log_end_offset if next_file is None else next_file,
                alive=replica.log_dir_id in alive,
            )
            save_partitions(connection, before, {key: after})
            return before[key], after

        before, after = self.cluster.store.transact(body, timeout_ms=READ_TIMEOUT_MS, announce=True)
        if after is not before:
            self.moved = True
            failpoint("copy.committed")
        return after

    def _open(self, info: LogDirInfo) -> LogDir | None:
        """Open a source. Return None if it fails or does not answer."""
        opened = self.cluster.opened_log_dir(info)
        if opened is not None:
            return opened
        answer = ask_in_thread("spark-log-copy-source", info, lambda: self.cluster.log_dir(info))
        wait([answer], ANSWER_S_MAX)
        with contextlib.suppress(SparkLogError, OSError):
            return answer.result() if answer.done() else None
        return None

    def _pace(self, size: int) -> None:
        if self.throttle is not None and self.stop.wait(self.throttle.take(size)):
            raise _StoppedError
        if self.stop.is_set():
            raise _StoppedError


def _has_file(target: LogDir, file: SegmentFile) -> bool:
    """Whether the log dir has the whole, undamaged file. An unreadable file (a bad sector) counts as damaged."""
    with contextlib.suppress(SparkLogError):
        return is_whole(target, file)
    return False
