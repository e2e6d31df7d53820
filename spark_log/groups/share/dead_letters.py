"""Writes dead letters of share groups (KIP-1191), for records that were rejected or delivered too often.

These records are Archiving. Their letters are appended to the dead letter topic by the transaction that finishes them,
so each has one letter. While the topic cannot be used, they stay Archiving, and count as unfinished.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.topics import Topic, find_topics
from spark_log.config import GroupConfig
from spark_log.errors import (
    DeadLetterTopicError,
    InvalidRecordError,
    InvalidRecordStateError,
    MessageSizeTooLargeError,
    SparkLogError,
    TopicAlreadyExistsError,
    redact,
)
from spark_log.failpoints import failpoint
from spark_log.groups.share import rows, rules
from spark_log.groups.share.rules import REJECTED, Range
from spark_log.groups.share.service import Poll, run_polls
from spark_log.ids import HOME, HOME_NAME, OffsetRange, TopicPartition
from spark_log.log.append.append_transaction import AppendRequest, CommitHook
from spark_log.log.append.encoding import Encoding, prepare
from spark_log.log.log import Log, Records
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.records.schema import DEAD_LETTER_CAUSE, RECORD_SCHEMA, read_schema
from spark_log.log.segments.plan import find_positions
from spark_log.metadata.sql_columns import SHARE_PARTITION, TOPIC
from spark_log.metadata.store_clock import StoreClock
from spark_log.remembered import BoundedDict
from spark_log.replication.controller.topic_operations import create_topic

logger = logging.getLogger(__name__)

PREFIX = "__dlq.errors."
"""Kafka's prefix of the headers that say where a dead letter comes from."""
MESSAGES = {
    REJECTED: ("Offset rejected by client.", "rejected"),
    rules.EXHAUSTED: ("Offset delivery count exceeded the threshold.", "delivery-count"),
}
MISSING = "missing"
"""The cause of a letter whose record is gone: its headers name only the record's origin."""
ENABLE = "errors.deadletterqueue.group.enable"
_TOGETHER = 500
_AGAIN_S = 1.0
_WARN_S = 60.0


class DeadLetters:
    """Writes dead letters with the log of a process. Safe to share between threads."""

    def __init__(self, make_log: Callable[[], Log]) -> None:
        """The first letter calls `make_log`, which returns the log."""
        self._make_log = make_log
        self._log: Log | None = None
        self._lock = threading.Lock()
        self._tried_s: BoundedDict[tuple[str, Key], float] = BoundedDict()
        self._warned_s: BoundedDict[str, float] = BoundedDict()

    @property
    def log(self) -> Log:
        with self._lock:
            if self._log is None:
                self._log = self._make_log()
            return self._log

    def close(self) -> None:
        """Close the log, if there is one."""
        if self._log is not None:
            self._log.close()

    def is_due(self, group_id: str, key: Key) -> bool:
        """Return whether to write letters of records that another process archived: it has had a second to do so."""
        now_s = clock.monotonic_s()
        seen_s = self._tried_s.setdefault((group_id, key), now_s)
        return now_s - seen_s >= _AGAIN_S

    def write(self, group_id: str, key: Key) -> int:
        """Write the letters of all Archiving records of a partition, and return their number. A failure is logged: the
        records stay Archiving.
        """
        self._tried_s[group_id, key] = clock.monotonic_s()
        written = 0
        try:
            while count := self._write_some(group_id, key):
                written += count
        except SparkLogError as error:
            self._warn(group_id, redact(str(error)))
        except Exception:  # the poll that archived the records has committed, and must return its outcome
            logger.exception("share group %r: dead letters wait", group_id)
        else:
            self._tried_s.pop((group_id, key), None)
        return written

    def _warn(self, group_id: str, reason: str) -> None:
        now_s = clock.monotonic_s()
        if now_s - self._warned_s.get(group_id, -_WARN_S) >= _WARN_S:
            self._warned_s[group_id] = now_s
            logger.warning("share group %r: dead letters wait: %s", group_id, reason)

    def _write_some(self, group_id: str, key: Key) -> int:
        log = self.log
        store = log.cluster.store

        def read(connection: sa.Connection) -> tuple[rows.ShareRow | None, bool, GroupConfig, str | None]:
            now = store.clock(connection)
            row = rows.row_of(rows.ask_row(connection, group_id, key, lock=False), group_id, key, now)
            there = rows.log_of(rows.ask_log(connection, key))
            elected = row is not None and there is not None and there.leader_epoch != row.leader_epoch
            config = rows.configs_of(rows.ask_configs(connection, group_id), store.settings)
            name = connection.execute(sa.select(TOPIC.name).where(TOPIC.topic_id == key[0])).scalar_one_or_none()
            return row, elected, config, name

        row, elected, config, source = store.read(read)
        while elected:  # it may have removed the records, and others have their offsets now
            run_polls(store, [Poll(group_id, "", release={key: frozenset()})])
            row, elected, config, source = store.read(read)
        ranges = _first(row.window.ranges, _TOGETHER) if row is not None else []
        if row is None or not ranges or source is None or not config.errors_deadletterqueue_topic_name:
            return 0
        if source == config.errors_deadletterqueue_topic_name:  # its own records have no letters
            end = _end(log, row, ranges, 0)
            store.transact(lambda connection: end(connection, store.clock(connection)))
            return sum(r.length for r in ranges)
        target = usable_topic(log, config.errors_deadletterqueue_topic_name)
        letters = _accepted_letters(log, target, group_id, TopicPartition(source, key[1]), key, ranges, config)
        records = Records(key[1] % target.partition_count, letters)
        topics: Mapping[int, Topic] = {target.topic_id: target}
        written = log.write_batches([(target, records)])
        request = AppendRequest(
            written.batches, written.blobs, atomic=True, write_id=written.write_id,
            hooks=[_end(log, row, ranges, len(letters))],
        )  # fmt: skip
        with log.naming(written, topics) as unnamed:
            result = log.append_whole(request, topics)
            if result.committed_before:  # by another process
                unnamed += written.batches
        failpoint("share.archived")
        return len(letters)


def _first(ranges: Sequence[Range], most: int) -> list[Range]:
    """Return the first Archiving ranges, with at most `most` records in all."""
    found: list[Range] = []
    for r in ranges:
        if r.lock < rules.AVAILABLE and most > 0:
            found.append(r._replace(end=min(r.end, r.first + most)))
            most -= found[-1].length
    return found


def usable_topic(log: Log, name: str) -> Topic:
    """Return the dead letter topic. Creates it if the cluster allows that. Raises DeadLetterTopicError."""
    settings = log.cluster.store.settings
    prefix = settings.errors_deadletterqueue_topic_name_prefix
    if name.startswith("__") or not name.startswith(prefix):
        raise DeadLetterTopicError(
            f"the name of dead letter topic {name!r} must begin with {prefix!r}"
            " (errors.deadletterqueue.topic.name.prefix), and not with '__'"
        )
    topic = log.cluster.store.read(lambda connection: find_topics(connection, [name])).get(name)
    if topic is None and settings.errors_deadletterqueue_auto_create_topics_enable:
        try:
            topic = create_topic(log.cluster, name, configs={ENABLE: "true"})
        except TopicAlreadyExistsError:
            topic = log.find_topic(name)
    if topic is None:
        raise DeadLetterTopicError(f"dead letter topic {name!r} does not exist")
    if not topic.config.errors_deadletterqueue_group_enable:
        raise DeadLetterTopicError(f"topic {name!r} is no dead letter topic: set its config {ENABLE}=true")
    if topic.store_id != HOME:  # a letter and the end of its record are one transaction
        raise DeadLetterTopicError(
            f"dead letter topic {name!r} is in a data store, and share groups are in the home store: move it"
            f" (`spark-log topic move {name} --store {HOME_NAME}`)"
        )
    return topic


def _accepted_letters(
    log: Log, target: Topic, group_id: str, source: TopicPartition, key: Key, ranges: Sequence[Range],
    config: GroupConfig,
) -> pa.Table:  # fmt: skip
    """Return the letters as they will be stored. If the dead letter topic refuses one, for example as too large, that
    letter has no copy of its record. Raises the topic's error if it refuses this one too.
    """
    encoding, now_ms = Encoding.of(target), log.cluster.store.now().wall_ms
    letters = _letters(log, group_id, source, key, ranges, config)
    try:
        return prepare(letters, encoding, now_ms)
    except (MessageSizeTooLargeError, InvalidRecordError):
        pointers = _letters(
            log, group_id, source, key, ranges, replace(config, errors_deadletterqueue_copy_record_enable=False)
        )
    accepted = []
    for number in range(len(letters)):
        try:
            accepted.append(prepare(letters.slice(number, 1), encoding, now_ms))
        except (MessageSizeTooLargeError, InvalidRecordError):
            accepted.append(prepare(pointers.slice(number, 1), encoding, now_ms))
    return pa.concat_tables(accepted)


def _letters(
    log: Log, group_id: str, source: TopicPartition, key: Key, ranges: Sequence[Range], config: GroupConfig
) -> pa.Table:
    """Return the letters, with RECORD_SCHEMA, in the order of the ranges."""
    copies = _records(log, source, key, ranges) if config.errors_deadletterqueue_copy_record_enable else {}
    now_ms = log.cluster.store.now().wall_ms
    made: list[dict[str, Any]] = []
    for r in ranges:
        message, cause = MESSAGES[r.lock]
        for offset in range(r.first, r.end):
            copy = copies.get(offset)
            gone = copy is None and config.errors_deadletterqueue_copy_record_enable
            headers = [
                *((copy or {}).get("headers") or ()),
                *letter_headers(source, offset, group_id, r.deliveries, message),
                {"key": DEAD_LETTER_CAUSE, "value": (MISSING if gone else cause).encode()},
            ]
            record = {"key": None, "value": None} if copy is None else {"key": copy["key"], "value": copy["value"]}
            made.append({**record, "headers": headers, "timestamp": now_ms * 1000})
    return pa.Table.from_pylist(made, schema=RECORD_SCHEMA)


def letter_headers(
    source: TopicPartition, offset: int, group_id: str, deliveries: int, message: str
) -> list[dict[str, Any]]:
    facts = {
        "topic": source.topic, "partition": source.partition, "offset": offset, "group": group_id,
        "delivery.count": deliveries, "message": message,
    }  # fmt: skip
    return [{"key": PREFIX + name, "value": str(value).encode()} for name, value in facts.items()]


def _records(log: Log, source: TopicPartition, key: Key, ranges: Sequence[Range]) -> dict[int, dict[str, Any]]:
    """Return the records of the ranges that still exist, by offset."""
    found = log.cluster.store.read(lambda connection: find_positions(connection, [source])).get(source)
    if found is None or found.topic_id != key[0]:
        return {}
    first, end = (
        max(ranges[0].first, found.positions.log_start_offset),
        min(ranges[-1].end, found.positions.high_watermark),
    )
    if first >= end:
        return {}
    wanted = np.concatenate([np.arange(r.first, r.end) for r in ranges])
    records: dict[int, dict[str, Any]] = {}
    schema = read_schema(include_headers=True, columns=("key", "value", "offset", "headers"))
    for batch in log.read({source: OffsetRange(first, end)}, schema):
        mine = batch.filter(pa.array(np.isin(batch.column("offset").to_numpy(), wanted)))
        records |= {record["offset"]: record for record in mine.to_pylist()}
    return records


def _end(log: Log, before: rows.ShareRow, ranges: Sequence[Range], letters: int) -> CommitHook:
    """Return a commit hook that finishes the records of `ranges`. It returns False, so that no letter is appended, if
    another process has finished some of the records, or if an election came after `before` was read: it may have
    truncated them, and others may have got their offsets.
    """
    group_id, key = before.group_id, before.key

    def end(connection: sa.Connection, _now: StoreClock) -> bool:
        now = log.cluster.store.clock(connection)
        row = rows.row_of(rows.ask_row(connection, group_id, key, lock=True), group_id, key, now)
        there = rows.log_of(rows.ask_log(connection, key))
        if row is None or there is None or not row.leader_epoch == there.leader_epoch == before.leader_epoch:
            return False
        try:
            change = rules.end_archiving(row.window, [(r.first, r.end) for r in ranges])
        except InvalidRecordStateError:
            return False
        rows.save(connection, [replace(row, window=change.window, dead_letters=row.dead_letters + letters)], now)
        return True

    return end


def archiving_partitions(connection: sa.Connection) -> list[tuple[str, Key]]:
    """Return the groups and partitions with Archiving records."""
    columns = (SHARE_PARTITION.group_id, SHARE_PARTITION.topic_id, SHARE_PARTITION.partition)
    query = sa.select(*columns).where(SHARE_PARTITION.archiving > 0)
    return [(row[0], (row[1], row[2])) for row in connection.execute(query)]
