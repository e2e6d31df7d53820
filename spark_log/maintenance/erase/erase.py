"""Erases records by key: deletes every record of the given keys, with its value and headers, also tombstones.

    erased = erase(cluster, "users", [b"N14228"], purge=True)

The other records keep their offsets; the erased records leave gaps, as after compaction. An erase covers the records
below the high watermarks at its beginning (`Erased.ends`), not those that are appended meanwhile. It seals the tails
first; then it replaces each segment that holds such a record (`maintenance.rewrite`), until a scan of all segments
finds none. Readers and writers continue. The replaced files stay on disk for file.delete.delay.ms, and older Delta
versions and lagging readers still see them; with `purge` they are deleted at once (`maintenance.erase.purge`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import segment_path
from spark_log.cluster.names import validate_user_topic
from spark_log.cluster.topics import Topic, find_topic
from spark_log.config import ClusterSettings
from spark_log.errors import (
    InvalidConfigurationError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    SparkLogError,
    UnknownTopicOrPartitionError,
    redact,
)
from spark_log.failpoints import failpoint
from spark_log.ids import OffsetRange, TopicPartition, WriteId
from spark_log.log.append.write_ids import Writer
from spark_log.log.partitions.partition_rows import check_here
from spark_log.log.records.key_set import KeySet
from spark_log.log.segments import plan as planner
from spark_log.log.segments.slices import Slice
from spark_log.maintenance.erase.key_matches import Scan, Write, holds, write_without
from spark_log.maintenance.erase.purge import Purged, purge_old_files
from spark_log.maintenance.erase.remaining_records import in_dead_letters, in_open_transactions
from spark_log.maintenance.erase.workers import ThreadWorkers, Workers
from spark_log.maintenance.report import Amount
from spark_log.maintenance.rewrite.rewrite_plan import Segment, plan_rewriting, segments
from spark_log.maintenance.rewrite.segment_rewrite import swap
from spark_log.maintenance.rewrite.tail_seal import seal
from spark_log.metadata.connections.server_identity import check_identity
from spark_log.metadata.sql_columns import PARTITION, SEGMENT
from spark_log.replication.controller.fallback_controller import FallbackController
from spark_log.tables.publication import publish, publish_above_tails
from spark_log.text import count_of

_FRUITLESS_MAX = 10
"""Maximum number of consecutive scans without effect (due to a merge or a change of the ISR) before an erase fails."""


@dataclass(frozen=True)
class Erased:
    """The result of an erase. Keys are personal data: the report has only their number."""

    topic: str
    keys: int
    ends: Mapping[int, int]
    """The offset below which records were checked, by partition."""
    records: int
    partitions: int
    """Number of partitions with such records."""
    segments_scanned: int
    before: Amount
    """The segments that were replaced."""
    after: Amount
    purged: Purged | None
    """The result of the purge, if there was one."""
    notes: tuple[str, ...]
    """Lines for the user: the data that was not erased, and how to erase it."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        shown = [
            f"Erased {count_of(self.records, 'record')} of {count_of(self.keys, 'key')} from {self.topic}: replaced"
            f" {self.before.files:,} of {count_of(self.segments_scanned, 'segment')} in"
            f" {count_of(self.partitions, 'partition')} ({self.before.bytes:,} -> {self.after.bytes:,} bytes)."
        ]
        if self.purged is not None:
            replicas = count_of(self.purged.replicas, "replica")
            moved = f", and {replicas} that had moved away" if self.purged.replicas else ""
            shown.append(f"Purged {count_of(self.purged.files, 'old file')} ({self.purged.bytes:,} bytes){moved}.")
        elif self.before:
            shown.append(
                "The replaced files stay for file.delete.delay.ms, where older Delta versions still show the"
                " records; with --purge they go at once."
            )
        shown.append("Records appended since the erase began were not checked.")
        return [*shown, *(f"Note: {note}" for note in self.notes)]


def erase(
    cluster: Cluster,
    topic: str,
    keys: Iterable[bytes] | pa.Array | pa.ChunkedArray,
    *,
    ends: Mapping[int, int] | None = None,
    purge: bool = False,
    workers: Callable[[KeySet], Workers] = ThreadWorkers,
    settings: ClusterSettings | None = None,
) -> Erased:
    """Erase every record of these keys. `ends` are offsets, at most the high watermarks, below which to erase instead.

    Raises UnknownTopicOrPartitionError, PolicyViolationError (an internal topic), OffsetOutOfRangeError (`ends`),
    StoreChangedError (with `purge`). If it cannot be completed, it raises the last reason, usually
    NotEnoughReplicasError or StorageUnavailableError. The records that were erased by then stay erased; the call may be
    repeated.
    """
    validate_user_topic(topic, "erase from")
    distinct_keys = _distinct(keys)
    cluster = cluster.of(cluster.home.store.read(lambda connection: find_topic(connection, topic)))
    settings = settings or cluster.store.settings
    if purge:
        cluster.store.read(check_identity)
    current, limits, above = cluster.store.read(lambda connection: _begin(connection, topic, ends or {}))
    team = workers(KeySet(distinct_keys))
    writer = Writer(cluster.store, "erase", team.lease_ms(settings))
    try:
        run = _Run(cluster, current, limits, team, writer, FallbackController(cluster, settings))
        run.erase_all()
    finally:
        writer.close()
    notes = [
        f"partition {partition}: not checked: {count_of(count, 'offset')} above the high watermark: erase again later"
        for partition, count in above.items()
    ]
    notes += cluster.store.read(lambda connection: in_open_transactions(connection, cluster, current))
    notes += in_dead_letters(cluster, current, team)
    try:
        publish(cluster, current)
    except (SparkLogError, OSError) as error:
        notes.append(f"not all Delta tables were updated; the next publication updates them: {redact(str(error))}")
    failpoint("erase.published")
    purged = None
    if purge:
        run.fallback.detect_failures()  # a log dir may have come back or failed meanwhile
        purged = purge_old_files(cluster, current, team, run.replaced)
        notes += purged.notes
    return Erased(
        topic, len(distinct_keys), limits, run.before.records - run.after.records, len(run.changed), len(run.scanned),
        run.before, run.after, purged, tuple(notes),
    )  # fmt: skip


def _distinct(keys: Iterable[bytes] | pa.Array | pa.ChunkedArray) -> pa.Array:
    given = keys if isinstance(keys, pa.Array | pa.ChunkedArray) else pa.array(keys, pa.binary())
    distinct = given.cast(pa.binary()).unique().drop_null()
    if not len(distinct):
        raise InvalidConfigurationError("keys: expected at least one")
    return distinct


def _begin(
    connection: sa.Connection, name: str, ends: Mapping[int, int]
) -> tuple[Topic, dict[int, int], dict[int, int]]:
    """Return the topic, the ends of the erase by partition, and the number of offsets above each high watermark."""
    topic = find_topic(connection, name)
    query = sa.select(PARTITION.partition, PARTITION.high_watermark, PARTITION.log_end_offset).where(
        PARTITION.topic_id == topic.topic_id
    )
    rows = connection.execute(query.order_by(PARTITION.partition)).all()
    limits = {partition: high_watermark for partition, high_watermark, _ in rows}
    for partition, end in ends.items():
        if partition not in limits:
            raise UnknownTopicOrPartitionError(f"end: partition {name}-{partition}: unknown topic or partition")
        if not 0 <= end <= limits[partition]:
            raise OffsetOutOfRangeError(
                f"end: offset {end} of {name}-{partition} is not between 0 and its high watermark {limits[partition]}"
            )
        limits[partition] = end
    return topic, limits, {partition: leo - hw for partition, hw, leo in rows if leo > hw}


@dataclass
class _Run:
    """Scans a topic's segments and rewrites them until none holds a record to erase."""

    cluster: Cluster
    topic: Topic
    ends: Mapping[int, int]
    workers: Workers
    writer: Writer
    fallback: FallbackController
    clean: set[str] = field(default_factory=set)
    """Names of segments without a record to erase: that stays so, as a segment's file never changes."""
    scanned: set[str] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    """Paths of the files that were removed from the log."""
    before: Amount = field(default_factory=Amount)
    after: Amount = field(default_factory=Amount)
    error: SparkLogError | None = None

    def erase_all(self) -> None:
        fruitless = 0
        while True:
            self.error = None
            clean_before = len(self.clean)
            tails = self._seal()
            suspects = self._suspects()
            if not tails and not suspects:
                check_here(self.cluster, self.topic)
                return
            self._rewrite(self._holding(suspects))
            fruitless = 0 if len(self.clean) > clean_before else fruitless + 1
            if fruitless > _FRUITLESS_MAX:
                raise self.error or NotEnoughReplicasError(
                    f"topic {self.topic.name}: {count_of(len(suspects), 'segment')} and"
                    f" {count_of(tails, 'tail')} could not be replaced: their in-sync replicas are too few, or keep"
                    " changing; what was erased stays erased"
                )
            if fruitless:
                self.fallback.detect_failures()

    def _seal(self) -> int:
        """Seal the tails below the ends; returns the number of tails that still begin below them."""
        tails = self._with_tails()
        for partition in tails:
            try:
                seal(self.cluster, self.writer, self.topic, partition, waits_for_schemas=False)
            except SparkLogError as error:
                self.error = error
        publish_above_tails(self.cluster, self.topic)
        left = len(self._with_tails())
        failpoint("erase.sealed")
        return left

    def _with_tails(self) -> list[int]:
        def read(connection: sa.Connection) -> list[int]:
            query = sa.select(SEGMENT.partition, sa.func.min(SEGMENT.base_offset)).where(
                SEGMENT.topic_id == self.topic.topic_id, SEGMENT.inline
            )
            rows = connection.execute(query.group_by(SEGMENT.partition).order_by(SEGMENT.partition))
            return [partition for partition, base in rows if base < self.ends.get(partition, 0)]

        return self.cluster.store.read(read)

    def _suspects(self) -> list[tuple[Segment, Slice]]:
        """Return the segments that may hold a record to erase, with their files."""
        found: list[tuple[Segment, Slice]] = []
        for partition, end in self.ends.items():
            found += self.cluster.store.read(partial(self._suspects_of, partition=partition, end=end))
        return found

    def _suspects_of(self, connection: sa.Connection, partition: int, end: int) -> list[tuple[Segment, Slice]]:
        files = [
            segment
            for segment in segments(connection, self.topic, partition, inline=False)
            if segment.base_offset < end and segment.record_count and segment.name not in self.clean
        ]
        if not files:
            return []
        where = OffsetRange(files[0].base_offset, files[-1].end_offset)
        slices = planner.plan(
            connection, {self.topic.name: self.topic}, {TopicPartition(self.topic.name, partition): where}
        )
        by_name = {piece.name: piece for piece in slices}
        return [(segment, by_name[segment.name]) for segment in files]

    def _holding(self, suspects: Sequence[tuple[Segment, Slice]]) -> list[tuple[Segment, int]]:
        """Return the segments that hold a record to erase, with their partitions; the others are added to `clean`."""
        log_dirs = self.cluster.log_dirs()
        scans = [Scan(piece, self.ends[piece.partition], log_dirs) for _, piece in suspects]
        holding: list[tuple[Segment, int]] = []
        for (segment, piece), verdict in zip(suspects, self.workers.run(holds, scans), strict=True):
            if isinstance(verdict, SparkLogError):
                self.error = verdict
                continue
            self.scanned.add(segment.name)
            if verdict:
                holding.append((segment, piece.partition))
            else:
                self.clean.add(segment.name)
        return holding

    def _rewrite(self, holding: Sequence[tuple[Segment, int]]) -> None:
        for first in range(0, len(holding), self.workers.at_once):
            self._rewrite_some(holding[first : first + self.workers.at_once])

    def _rewrite_some(self, holding: Collection[tuple[Segment, int]]) -> None:
        log_dirs = self.cluster.log_dirs()
        writes: list[Write] = []
        write_ids: list[WriteId] = []
        for segment, partition in holding:
            plan = partial(plan_rewriting, topic=self.topic, partition=partition, inputs=[segment])
            rewriting = self.cluster.store.read(plan)
            if rewriting is not None:
                write_id, name = self.writer.file_name()
                write_ids.append(write_id)
                writes.append(Write(rewriting, name.removesuffix(".parquet"), self.ends[partition], log_dirs))
        results = self.workers.run(write_without, writes)
        for write_id, write, written in zip(write_ids, writes, results, strict=True):
            self.writer.keep()  # the next ones may take long
            if isinstance(written, SparkLogError):
                self.error = written
                continue
            failpoint("erase.file-written")
            rewriting = write.rewriting
            if not swap(self.cluster, write_id, rewriting, written, erases=True):
                continue
            failpoint("erase.swapped")
            [old] = rewriting.inputs
            self.clean.add(written.name)
            self.changed.add(rewriting.partition)
            self.replaced.add(segment_path(self.topic.folder, rewriting.partition, old.name))
            self.before += Amount(1, old.bytes, old.record_count)
            self.after += Amount(1, written.facts.bytes, written.facts.record_count)
