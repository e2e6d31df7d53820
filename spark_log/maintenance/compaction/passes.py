"""Prepares and completes a compaction pass over a partition: decides whether it is due, plans its units, and swaps in
the new files.

Between planning and swapping, `local_compaction` or `spark_compaction` finds the last offset of each key and writes the
files.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import sqlalchemy as sa

from spark_log.cluster.topics import Topic
from spark_log.errors import InvalidConfigurationError
from spark_log.failpoints import failpoint
from spark_log.log.partitions.partition_rows import Key, lock_partitions, read_partition, replace_compactions
from spark_log.maintenance.compaction.rules import (
    Pass,
    cleanable,
    first_dirty_offset,
    is_due,
    remember,
    tombstone_horizon,
)
from spark_log.maintenance.compaction.unit import Compacted, Unit
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.report import Amount, Report
from spark_log.maintenance.rewrite.rewrite_plan import Segment, plan_rewriting, segments
from spark_log.maintenance.rewrite.segment_rewrite import discard, swap
from spark_log.maintenance.rewrite.tail_seal import runs, sealing
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import COMPACTION, PARTITION
from spark_log.metadata.store import Store
from spark_log.remembered import BoundedDict
from spark_log.tables.publication import publish_above_tails, try_publish
from spark_log.tables.seen_offsets import listed_above_tail, overlaps, seen_offsets
from spark_log.text import count_of


@dataclass(frozen=True)
class Due:
    """A partition for which a pass is due. `bytes` are stored below `end_offset`, some in the tail if `inline`."""

    topic: Topic
    partition: int
    end_offset: int
    bytes: int
    inline: bool
    now_ms: int
    dirty_records: int = 0
    """Records in segments that end above the end of the last pass."""
    forced: bool = False


@dataclass(frozen=True)
class CompactionPass:
    """The plan of a pass, made from one snapshot. If it skips files (`_Cleanable`), it ends at the first of them:
    `end_offset` is 0 if no file lies below it. Units above `end_offset` drop records too, but the recorded pass does
    not cover them.
    """

    topic: Topic
    partition: int
    units: tuple[Unit, ...]
    end_offset: int
    read_up_to: int
    """The end of the last unit; 0 if no file is skipped."""
    partition_epoch: int
    carried: int
    """Upper bound of the tombstones that the last pass left in units that this pass need not read."""

    @property
    def key(self) -> Key:
        return self.topic.topic_id, self.partition

    def __str__(self) -> str:
        return f"{self.topic.name}-{self.partition}"


@dataclass(frozen=True)
class _Cleanable:
    """The segments that a pass may rewrite, and the passes so far. Segments that end above `dirty_from` make a pass
    due.

    Tables list the files in some ranges above a tail (`listed_above_tail`). A pass seals this tail and publishes, but a
    table that cannot be published now, as in an offline log dir, keeps its range: the files there are skipped, the
    first of them at `skipped_from`.
    """

    segments: list[Segment]
    dirty_from: int
    passes: list[Pass]
    skipped_from: int | None


_read_up_to: BoundedDict[tuple[str, int], tuple[int, int]] = BoundedDict()
"""The partition epoch and the end of the last pass over each partition that skipped files, by the topic's uuid and
number. While files are skipped in that epoch, only segments above this end, or expired tombstones, make another pass
due. A new process does one more pass.
"""


def compacted_topics(context: MaintenanceContext, names: Collection[str] | None = None) -> list[Topic]:
    """Return the compacted topics. Raises InvalidConfigurationError if one of `names` is not compacted."""
    topics = list(context.topics())
    if names is not None:
        check_compacted(topics)
    return [topic for topic in topics if topic.config.compacts]


def check_compacted(topics: Iterable[Topic]) -> None:
    """Raise InvalidConfigurationError if one of these topics is not compacted."""
    for topic in topics:
        if not topic.config.compacts:
            policy = ",".join(sorted(topic.config.cleanup_policy))
            raise InvalidConfigurationError(
                f"topic {topic.name!r}: cleanup.policy is {policy!r}, expected 'compact' or 'compact,delete'"
            )


def candidates(context: MaintenanceContext, topic: Topic, *, force: bool = False) -> Sequence[int]:
    """Return the partitions to check with `find_due`: those with new records since the last pass or with tombstones,
    or, with `force`, all.
    """
    if force:
        return range(topic.partition_count)
    passed = (
        sa.select(
            COMPACTION.partition,
            sa.func.max(COMPACTION.end_offset).label("end_offset"),
            sa.func.max(COMPACTION.tombstone_count).label("left"),
        )
        .where(COMPACTION.topic_id == topic.topic_id)
        .group_by(COMPACTION.partition)
        .subquery()
    )
    query = (
        sa.select(PARTITION.partition)
        .select_from(t.partition.outerjoin(passed, passed.c.partition == PARTITION.partition))
        .where(PARTITION.topic_id == topic.topic_id)
        .where((PARTITION.high_watermark > sa.func.coalesce(passed.c.end_offset, 0)) | (passed.c.left > 0))
        .order_by(PARTITION.partition)
    )
    return context.cluster.store.read(lambda connection: connection.execute(query).scalars().all())


def find_due(context: MaintenanceContext, topic: Topic, partition: int, *, force: bool = False) -> Due | None:
    """Return the partition if a pass over it is due; with `force` if a pass could change anything. None otherwise.

    A pass that is due may turn out to have nothing to do, if its tables cannot be published (`plan_pass`).
    """
    now_ms = context.cluster.store.now().wall_ms
    candidates = context.cluster.store.read(
        lambda c: _cleanable(c, topic, partition, now_ms, listed_above_tail(c, topic, partition, online=False))
    )
    covered = candidates.segments
    if not covered or not (force or is_due(covered, candidates.dirty_from, candidates.passes, now_ms, topic.config)):
        return None
    size = sum(each.bytes for each in covered)
    inline = any(each.inline for each in covered)
    dirty = sum(each.record_count for each in covered if each.end_offset > candidates.dirty_from)
    return Due(topic, partition, covered[-1].end_offset, size, inline, now_ms, dirty, force)


def plan_pass(context: MaintenanceContext, due: Due) -> CompactionPass | None:
    """Seal the part of the tail that the pass covers, and plan the pass. Returns None if there is nothing left to
    do.
    """
    cluster, topic, partition = context.cluster, due.topic, due.partition
    if due.inline:
        for _ in sealing(cluster, context.writer, topic, partition, context.fence, due.end_offset):
            pass
    publish_above_tails(cluster, topic)
    steady = cluster.store.clock_is_steady()

    def plan(connection: sa.Connection) -> CompactionPass | None:
        listed = listed_above_tail(connection, topic, partition)
        candidates = _cleanable(connection, topic, partition, due.now_ms, listed)
        files, passes = list(takewhile(lambda each: not each.inline, candidates.segments)), candidates.passes
        state = read_partition(connection, (topic.topic_id, partition))
        if not files or state is None:
            return None
        if not (due.forced or is_due(files, candidates.dirty_from, passes, due.now_ms, topic.config)):
            return None  # the dirty files lie above a tail in a table that could not be published
        horizon = tombstone_horizon(passes, due.now_ms, topic.config.delete_retention_ms) if steady else 0
        end_passed, limit = first_dirty_offset(passes), candidates.skipped_from
        end_offset = max((file.end_offset for file in files if limit is None or file.end_offset <= limit), default=0)
        left = max(passes, key=lambda done: done.end_offset).tombstone_count if passes else 0
        units: list[Unit] = []
        for run in runs(files, topic.config.segment_bytes, seen_offsets(connection, topic, partition)):
            rewriting = plan_rewriting(connection, topic, partition, run)
            if rewriting is None:
                return None
            start = state.log_start_offset  # records below it cannot be read: the pass drops them
            slices = tuple(piece._replace(start=max(piece.start, start)) for piece in rewriting.slices)
            units.append(
                Unit(
                    replace(rewriting, slices=tuple(piece for piece in slices if piece.start < piece.end)),
                    horizon=horizon,
                    tombstones_expired=left > 0 and rewriting.base_offset < horizon,
                    dirty=end_passed < rewriting.end_offset <= end_offset,
                )
            )
        carried = left if horizon < end_passed else 0
        read_up_to = 0 if limit is None else files[-1].end_offset
        return CompactionPass(topic, partition, tuple(units), end_offset, read_up_to, state.partition_epoch, carried)

    return cluster.store.read(plan)


def _cleanable(
    connection: sa.Connection, topic: Topic, partition: int, now_ms: int, listed: Sequence[tuple[int, int]]
) -> _Cleanable:
    """Find the segments that a pass may rewrite. It skips the files in the ranges `listed`."""
    state = read_partition(connection, (topic.topic_id, partition))
    if state is None:
        return _Cleanable([], 0, [], None)
    passes = read_passes(connection, (topic.topic_id, partition))
    everything = [
        segment for inline in (True, False) for segment in segments(connection, topic, partition, inline=inline)
    ]
    everything.sort(key=lambda segment: segment.base_offset)
    start = state.log_start_offset
    first_dirty = max(first_dirty_offset(passes), start)
    cleanable_segments = cleanable(everything, start, first_dirty, now_ms, topic.config.min_compaction_lag_ms)
    kept = [
        segment
        for segment in cleanable_segments
        if segment.inline or not overlaps(segment.base_offset, segment.end_offset, listed)
    ]
    key = topic.uuid, partition
    if len(kept) == len(cleanable_segments):
        _read_up_to.pop(key, None)
        return _Cleanable(cleanable_segments, first_dirty, passes, None)
    offsets = {segment.base_offset for segment in kept}
    skipped_from = min(segment.base_offset for segment in cleanable_segments if segment.base_offset not in offsets)
    epoch, end = _read_up_to.get(key, (-1, 0))
    dirty_from = max(first_dirty, end if epoch == state.partition_epoch else 0)
    # a pass that covers no segment cannot record expired tombstones
    covers_some = any(segment.base_offset < skipped_from for segment in kept)
    return _Cleanable(kept, dirty_from, passes if covers_some else [], skipped_from)


def read_passes(connection: sa.Connection, key: Key) -> list[Pass]:
    """Return the recorded passes over a partition, by offset."""
    query = (
        sa.select(COMPACTION.end_offset, COMPACTION.at_ms, COMPACTION.tombstone_count)
        .where(COMPACTION.topic_id == key[0], COMPACTION.partition == key[1])
        .order_by(COMPACTION.end_offset)
    )
    return [Pass(*row) for row in connection.execute(query)]


class Compacting:
    """The passes over a topic that are in progress. Collects their changes for one report at the end."""

    def __init__(self, context: MaintenanceContext, topic: Topic) -> None:
        self._context = context
        self._topic = topic
        self._changed: set[int] = set()
        self._completed = False
        self._before = Amount()
        self._after = Amount()
        self._tombstones = 0
        self._notes: list[str] = []

    def say(self, note: str) -> None:
        """Add a note for users to the report."""
        self._notes.append(note)

    def swap(self, planned: CompactionPass, unit: Unit, compacted: Compacted, write_id: str) -> bool:
        """Replace the inputs of a unit with its new file. Returns False if the swap is refused."""
        written, rewriting = compacted.written, unit.rewriting
        if written is None:
            return True
        failpoint("compact.file-written")
        if written.facts.record_count == unit.record_count:
            discard(self._context.cluster, rewriting, written)
            return True
        if not swap(self._context.cluster, write_id, rewriting, written, self._context.fence):
            return False
        failpoint("compact.swapped")
        self._changed.add(planned.partition)
        self._before += Amount(len(rewriting.inputs), sum(each.bytes for each in rewriting.inputs), unit.record_count)
        self._after += Amount(1, written.facts.bytes, written.facts.record_count)
        self._tombstones += compacted.tombstones_dropped
        return True

    def complete(self, planned: CompactionPass, compacted: Sequence[Compacted]) -> None:
        """Record the pass as completed: each of its units has been swapped in or had nothing to drop."""
        failpoint("compact.before-noted")
        counted = [
            (each, unit)
            for each, unit in zip(compacted, planned.units, strict=True)
            if unit.rewriting.end_offset <= planned.end_offset
        ]
        unread = any(each.written is None and not unit.dirty for each, unit in counted)
        tombstones = sum(each.tombstones_left for each, _ in counted) + (planned.carried if unread else 0)
        store, fence = self._context.cluster.store, self._context.fence
        self._completed = True
        if planned.end_offset and not store.transact(lambda c: _note(c, store, planned, tombstones), fence=fence):
            self.note_conflict(planned)
        elif planned.read_up_to:
            key = planned.topic.uuid, planned.partition
            _read_up_to[key] = planned.partition_epoch, planned.read_up_to

    def note_conflict(self, planned: CompactionPass) -> None:
        """Note that the pass is not completed, because its inputs have changed. The next pass continues."""
        self.say(f"{planned}: the log or its replicas changed meanwhile; the next pass continues")

    def report(self) -> Report | None:
        """Publish the changes, and return the report, or None if nothing was changed and there are no notes."""
        if self._changed or self._completed:  # also for a pass that was killed before it published its changes
            try_publish(self._context.cluster, [self._topic])
        if not self._changed and not self._notes:
            return None
        dropped = [f"{count_of(self._tombstones, 'tombstone')} dropped"] if self._tombstones else []
        notes = (*dropped, *self._notes)
        return Report("compact", self._topic.name, len(self._changed), self._before, self._after, notes)


def _note(connection: sa.Connection, store: Store, planned: CompactionPass, tombstones: int) -> bool:
    state = lock_partitions(connection, [planned.key]).get(planned.key)
    # an election may have truncated the log, and other records have the offsets
    if state is None or state.partition_epoch != planned.partition_epoch:
        return False
    passes = read_passes(connection, planned.key)
    done = Pass(planned.end_offset, store.clock(connection).wall_ms, tombstones)
    kept = remember(passes, done, planned.topic.config.delete_retention_ms)
    gone = [each.end_offset for each in passes if each not in kept]
    new = [
        {"topic_id": planned.key[0], "partition": planned.key[1], **vars(each)} for each in kept if each not in passes
    ]
    replace_compactions(connection, planned.key, gone, new)
    return True
