"""Copies dead letters back to the topics of their records, each letter once.

A letter has the headers of `groups/share/dead_letters.py`. It holds a copy of its record, or only the record's place,
where the record is then read. One transaction commits the copies and the offsets of their letters.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from spark_log.clients.consume.consumer import Consumer
from spark_log.clients.produce.producer import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import DataLossError, IllegalArgumentError, InvalidRecordError, UnknownTopicOrPartitionError
from spark_log.groups.committed_offsets import KEPT, committed_offsets
from spark_log.groups.group_names import check_group_id
from spark_log.groups.share.dead_letters import PREFIX
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.reader import LogReader
from spark_log.log.records.schema import DEAD_LETTER_CAUSE, read_schema
from spark_log.log.segments.slices import Positions
from spark_log.spark.streams.loop_sources import GroupSource
from spark_log.spark.streams.record_retries import COPY_SCHEMA, POLL_MS, Polled
from spark_log.spark.streams.transactional_loop import TransactionalLoop

_TOGETHER = 500
"""The maximum number of letters in one transaction."""
_SESSION_MS, _HEARTBEAT_MS = 6_000, 1_000
"""If a redrive is killed, the next one gets its letters after this session timeout."""
_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")

Row = Mapping[str, Any]
"""A record with _COLUMNS, as `to_pylist` returns it."""


class Origin(NamedTuple):
    """The place of a dead letter's record."""

    partition: TopicPartition
    offset: int


@dataclass
class Redriven:
    """Counts the letters that a redrive has copied or skipped, or would."""

    copied: Counter[str] = field(default_factory=Counter)
    """The number of copies by topic."""
    missing: int = 0
    """The number of skipped records: letters whose record no longer exists, and records that are no dead letters."""

    def add(self, other: "Redriven") -> None:
        self.copied += other.copied
        self.missing += other.missing


@dataclass
class Preview(Redriven):
    """The letters that a redrive would copy or skip."""

    letters: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    """The offsets of the letters. A Redrive with these `letters` copies no others."""
    is_complete: bool = True
    """Whether `letters` has all letters. Otherwise a limit, or `is_over`, has ended the preview."""


class Redrive:
    """Copies the letters that `topic` has now. Letters that arrive meanwhile, even letters of the copies, are left for
    the next run.

    `to` is the topic of the copies, by default the topic of each record. The committed offsets of `group`, by default
    `redrive-<topic>`, mark the copied letters. `limit` is the maximum number of letters. A letter whose record or topic
    no longer exists, or a record that is no dead letter, is an error, unless `skip_missing` is set. If `letters` of a
    preview are given, no others are copied.

    `check_topics` gets the names of the letters' topics before records are read from them or copied to them, and raises
    an error to refuse them. `is_over` is called between transactions, and ends the redrive if it returns true.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        to: str | None = None,
        group: str | None = None,
        limit: int | None = None,
        skip_missing: bool = False,
        letters: Mapping[TopicPartition, OffsetRange] | None = None,
        check_topics: Callable[[Collection[str]], object] = lambda _: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Check the arguments. Raises UnknownTopicOrPartitionError for `topic` and `to`, InvalidRecordError if they are
        the same, InvalidGroupIdError, and IllegalArgumentError if `letters` are no longer the next ones.
        """
        if to == topic:
            raise InvalidRecordError(f"the letters of topic {topic!r} cannot be copied to the same topic")
        self.topic, self.group, self.limit = topic, check_group_id(group or f"redrive-{topic}"), limit
        self.is_over = is_over
        self._to, self._skip_missing, self._check_topics = to, skip_missing, check_topics
        self._cluster, self._log = cluster, LogReader(cluster)
        if to is not None:
            self._log.find_topic(to)
        self._letters = self._log.find_topic(topic)
        self._ends = {tp: end for tp, (_, end) in self._log.positions(self._letters).items()}
        if letters is not None:
            self._check_letters(letters)
            self._ends = {tp: each.end for tp, each in letters.items()}

    def _check_letters(self, letters: Mapping[TopicPartition, OffsetRange]) -> None:
        begins = self._begins(self._log.positions(self._letters))
        for tp, each in letters.items():
            if begins.get(tp) != each.start or not each.start < each.end <= self._ends[tp]:
                raise IllegalArgumentError(
                    f"{tp}: letters {each.start} to {each.end} are not the next ones of group {self.group!r}: they were"
                    " copied or removed meanwhile. Look again"
                )

    def close(self) -> None:
        self._log.close()

    def __enter__(self) -> "Redrive":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def preview(self) -> Preview:
        """Return what `run` would copy. The preview skips the letters that `skip_missing` skips, and counts them."""
        preview, left = Preview(), self.limit
        begins = self._begins(self._log.positions(self._letters))
        ranges = {tp: OffsetRange(first, self._ends[tp]) for tp, first in begins.items() if first < self._ends[tp]}
        for rows in self._read_letters(ranges):
            chosen = rows[:left]
            preview.add(self._copies(chosen, skip_missing=True)[1])
            for row in chosen:
                tp = TopicPartition(self.topic, row["partition"])
                preview.letters[tp] = OffsetRange(begins[tp], row["offset"] + 1)
            left = None if left is None else left - len(chosen)
            if left == 0 or self.is_over():
                preview.is_complete = preview.letters == ranges
                return preview
        preview.letters = ranges
        return preview

    def _read_letters(self, ranges: Mapping[TopicPartition, OffsetRange]) -> Iterator[list[Row]]:
        """Yield the letters by partition and offset, in lists that are at most as long as a transaction."""
        for batch in self._log.read(ranges, read_schema(include_headers=True, columns=_COLUMNS)):
            for first in range(0, batch.num_rows, _TOGETHER):
                yield batch.slice(first, _TOGETHER).to_pylist()

    def run(self, report: Callable[[Redriven], object] = lambda _: None) -> Redriven:
        """Copy the letters. `report` gets the totals after each transaction.

        Raises InvalidRecordError for a record that is not a dead letter, UnknownTopicOrPartitionError for a letter
        whose topic was deleted, and DataLossError for a letter whose record no longer exists. The transactions before
        that of the faulty letter stay committed.
        """
        address = self._cluster.store.address.with_password
        consumer = Consumer(
            self.topic, cluster=address, group_id=self.group, client_id="spark-log-redrive",
            enable_auto_commit=False, auto_offset_reset="earliest", allow_auto_create_topics=False,
            session_timeout_ms=_SESSION_MS, heartbeat_interval_ms=_HEARTBEAT_MS,
        )  # fmt: skip
        producer = Producer(
            cluster=address, transactional_id=f"{self.group[:200]}-{uuid.uuid4()}", allow_auto_create_topics=False
        )
        with consumer, producer:
            loop = _Loop(self, consumer, producer, report)
            loop.run_arrow(loop.copy)
        return loop.redriven

    def is_done(self, positions: Mapping[TopicPartition, int] | None = None) -> bool:
        """Whether every letter was copied, or truncated by an unclean leader election. `positions` are those of a
        member of the group, in its partitions.
        """
        positions = positions or {}
        log = self._log.positions(self._letters)
        begins = self._begins(log)
        return all(
            max(begins[tp], positions.get(tp, 0)) >= min(end, log[tp].high_watermark) for tp, end in self._ends.items()
        )

    def end_of(self, partition: TopicPartition) -> int:
        return self._ends.get(partition, 0)

    def _begins(self, log: Mapping[TopicPartition, Positions]) -> dict[TopicPartition, int]:
        """Return the offset of the first letter of each partition that is not copied."""
        committed = committed_offsets(self._cluster.store, self.group)
        return {tp: max(committed.get(tp, 0), log[tp].log_start_offset) for tp in self._ends}

    def copies(self, rows: Sequence[Row]) -> tuple[dict[str, pa.Table], Redriven]:
        """Return the copies of letters as tables for `send_table`, by topic, and their counts."""
        return self._copies(rows, self._skip_missing)

    def _copies(self, rows: Sequence[Row], skip_missing: bool) -> tuple[dict[str, pa.Table], Redriven]:
        origins = [_origin(row) for row in rows]
        pointers = [
            (row, origin) for row, origin in zip(rows, origins, strict=True) if origin is not None and _is_pointer(row)
        ]
        names = {origin.partition.topic for _, origin in pointers}
        if self._to is None:
            names |= {origin.partition.topic for origin in origins if origin is not None}
        self._check_topics(names)
        topics = self._topics(names)
        sources = self._read_sources(pointers, topics)
        made: dict[str, list[Row]] = {}
        redriven = Redriven()
        for row, origin in zip(rows, origins, strict=True):
            record = row if origin is None or not _is_pointer(row) else sources.get(origin)
            try:
                if record is None:
                    assert origin is not None
                    raise DataLossError(
                        f"dead letter {_place(row)} has no copy of its record, and {origin.partition}@{origin.offset}"
                        " is gone. Such letters can be skipped"
                    )
                target, number = self._target(row, origin, topics)
            except (DataLossError, InvalidRecordError, UnknownTopicOrPartitionError):
                if not skip_missing:
                    raise
                redriven.missing += 1
                continue
            made.setdefault(target, []).append({**record, "headers": _own_headers(record), "partition": number})
            redriven.copied[target] += 1
        return {
            name: pa.Table.from_pylist(list(map(dict, copies)), COPY_SCHEMA) for name, copies in made.items()
        }, redriven

    def _target(self, row: Row, origin: Origin | None, topics: Mapping[str, Topic]) -> tuple[str, int | None]:
        """Return the topic and the partition of a copy. With partition None, the key decides."""
        if self._to is not None:
            return self._to, None
        if origin is None:
            raise InvalidRecordError(
                f"{_place(row)} is not a dead letter: it lacks headers {PREFIX}topic, .partition and .offset, the last"
                " two with numbers. Name a topic for its copy, or skip such records"
            )
        topic = topics.get(origin.partition.topic)
        if topic is None:
            raise UnknownTopicOrPartitionError(
                f"dead letter {_place(row)}: topic {origin.partition.topic!r} does not exist. Name another for its copy"
            )
        number = origin.partition.partition
        return topic.name, number if number < topic.partition_count else None

    def _topics(self, names: set[str]) -> dict[str, Topic]:
        return self._cluster.store.read(lambda connection: find_topics(connection, sorted(names)))

    def _read_sources(self, pointers: Iterable[tuple[Row, Origin]], topics: Mapping[str, Topic]) -> dict[Origin, Row]:
        """Read the records of letters that still exist. A topic that was created after the letter has other records."""
        offsets: dict[TopicPartition, set[int]] = {}
        for row, (partition, offset) in pointers:
            topic = topics.get(partition.topic)
            if topic is not None and topic.created_ms <= row["timestamp"].timestamp() * 1000:
                offsets.setdefault(partition, set()).add(offset)
        records: dict[Origin, Row] = {}
        schema = read_schema(include_headers=True, columns=_COLUMNS)
        for partition, wanted in offsets.items():
            positions = self._log.positions(topics[partition.topic]).get(partition)
            if positions is None:
                continue
            readable = [offset for offset in sorted(wanted) if positions[0] <= offset < positions[1]]
            for run in _runs(readable):
                for batch in self._log.read({partition: run}, schema):
                    records |= {Origin(partition, row["offset"]): row for row in batch.to_pylist()}
        return records


class _Loop(TransactionalLoop):
    """The loop of a redrive. It ends after the letters that existed when the redrive began, or at the limit."""

    def __init__(
        self, redrive: Redrive, consumer: Consumer, producer: Producer, report: Callable[[Redriven], object]
    ) -> None:
        super().__init__(consumer, producer)
        self._consumer, self._group = consumer, GroupSource(consumer)
        self._redrive, self._report = redrive, report
        self.redriven = Redriven()
        self._prepared = Redriven()

    def copy(self, letters: pa.Table, producer: Producer) -> None:
        """Send the copies of letters. This is the loop's transform."""
        tables, self._prepared = self._redrive.copies(letters.to_pylist())
        for topic, table in tables.items():
            producer.send_table(topic, table)

    def _poll_table(self) -> Polled | None:
        limit = self._redrive.limit
        left = _TOGETHER if limit is None else min(_TOGETHER, limit - self.totals.records)
        if left == 0 or self._redrive.is_over():
            self.stop()
            return None
        polled = self._consumer.poll_arrow(POLL_MS, max_records=left, columns=_COLUMNS)
        tables = {partition: self._cut(partition, table) for partition, table in polled.items()}
        tables = {partition: table for partition, table in tables.items() if table.num_rows}
        if not tables:
            mine = self._consumer.assignment()
            ends = self._consumer.offsets_to_commit(mine)
            if self._redrive.is_done({partition: commit.offset for partition, commit in ends.items()}):
                self.stop()
            return None
        polled_tables = self._group.polled_tables(tables)
        ends = {partition: commit._replace(metadata=KEPT) for partition, commit in polled_tables.ends.items()}
        return replace(polled_tables, ends=ends)

    def _cut(self, partition: TopicPartition, table: pa.Table) -> pa.Table:
        """Return the letters before the redrive's end. If there are others, seek back to them and pause."""
        end = self._redrive.end_of(partition)
        offsets = table["offset"].to_pylist()
        count = sum(offset < end for offset in offsets)
        if count < len(offsets):
            here = self._consumer.offsets_to_commit([partition])[partition]
            self._consumer.seek(partition, here._replace(offset=offsets[count]))
            self._consumer.pause(partition)
        return table.slice(0, count)

    def _transact(self, polled: Polled, transform: Callable[[Any, Producer], object]) -> None:
        try:
            super()._transact(polled, transform)
        except BaseException:  # the letters are polled again, even those of partitions that `_cut` has paused
            self._consumer.resume(*self._consumer.assignment() & polled.starts.keys())
            raise
        self.redriven.add(self._prepared)
        self._report(self.redriven)


def _origin(letter: Row) -> Origin | None:
    """Return the place of a letter's record, or None if it is not a dead letter.

    The last header of each name counts, because the record may have had such headers of its own.
    """
    facts = {header["key"]: header["value"] for header in letter["headers"] or ()}
    try:
        topic, partition, offset = ((facts[PREFIX + name] or b"").decode() for name in ("topic", "partition", "offset"))
        origin = Origin(TopicPartition(topic, int(partition)), int(offset))
    except (KeyError, ValueError):
        return None
    return origin if 0 <= origin.partition.partition < 2**31 and origin.offset >= 0 else None


def _is_pointer(letter: Row) -> bool:
    """Whether a letter has no copy of its record. A copy of a record without key and value looks the same."""
    return letter["key"] is None and letter["value"] is None


def _own_headers(record: Row) -> list[Mapping[str, Any]]:
    """Return the headers without those of a dead letter."""
    return [
        header
        for header in record["headers"] or ()
        if header["key"] != DEAD_LETTER_CAUSE and not header["key"].startswith("__dlq.")
    ]


def _runs(offsets: Sequence[int]) -> list[OffsetRange]:
    """Convert ascending offsets to ranges."""
    runs: list[OffsetRange] = []
    for offset in offsets:
        if runs and runs[-1].end == offset:
            runs[-1] = OffsetRange(runs[-1].start, offset + 1)
        else:
            runs.append(OffsetRange(offset, offset + 1))
    return runs


def _place(record: Row) -> str:
    return f"{record['topic']}-{record['partition']}@{record['offset']}"
