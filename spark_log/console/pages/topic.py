"""Shows partitions, skew, configs, groups, tables, schemas and throughput of a topic (page `/topics/{topic}`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import sqlalchemy as sa

from spark_log.cluster.names import is_internal
from spark_log.cluster.topics import Topic
from spark_log.cluster.usage import Usage, usage
from spark_log.config import definitions
from spark_log.console.charts import Chart, chart
from spark_log.console.listing import Listing, listing, row_of
from spark_log.console.pages.topics import favourites
from spark_log.console.routes import Call, View
from spark_log.errors import SparkLogError, redact
from spark_log.facts.metrics.activity import lag_by_group
from spark_log.facts.metrics.history import Kind
from spark_log.facts.share_groups import is_dead_letter_topic
from spark_log.facts.topics import PartitionInfo, describe
from spark_log.log.columns.types import type_ddl
from spark_log.metadata.sql_columns import PARTITION
from spark_log.registry.rows import version_ids
from spark_log.registry.topic_schemas import subject_name
from spark_log.tables.lag_measurement import TableInfo, describe_tables


@dataclass(frozen=True)
class PartitionRow:
    """A partition. `state` is offline, under-replicated or empty. `tail_bytes` are in the metadata store only."""

    partition: int
    leader: int | None
    preferred_leader: int | None
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    state: str
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    records: int
    bytes: int
    segments: int
    small_files: int
    tail_bytes: int


@dataclass(frozen=True)
class Skew:
    """The largest partition compared with the mean of the topic.

    `ratio` is 1 if all partitions are equal, or None without records.
    """

    partition: int
    records: int
    bytes: int
    ratio: float | None


@dataclass(frozen=True)
class ConfigRow:
    """A config of a topic. `is_set` is whether the topic overrides the default."""

    name: str
    value: str
    default: str
    is_set: bool
    unit: str
    doc: str


@dataclass(frozen=True)
class GroupLag:
    """The lag of a group over `partitions` partitions. `lag` is the total in records, and `lag_s` the largest lag of a
    partition in seconds, or None if it is unknown.
    """

    group: str
    members: int
    partitions: int
    lag: int
    lag_s: float | None


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    note: str


@dataclass(frozen=True)
class Schema:
    """The typed columns of keys or values.

    `subject` is the subject of a schema registry if the topic follows one. `versions` has its versions if the subject
    is in the cluster's own registry.
    """

    part: str
    format: str
    framing: str
    columns: Sequence[Column]
    subject: str | None
    versions: Sequence[int]


@dataclass(frozen=True)
class TopicFacts:
    """A topic. `totals` are the sums over all partitions. `partitions` is one page of them. `has_dead_letters` is
    whether share groups may write dead letters to it.
    """

    topic: str
    topic_id: str
    internal: bool
    favourite: bool
    created_ms: int
    replication_factor: int
    partition_count: int
    totals: Mapping[str, int]
    tail_bytes: int
    rate: float | None
    partitions: Listing[PartitionRow]
    skew: Skew | None
    configs: Sequence[ConfigRow]
    groups: Sequence[GroupLag]
    tables: Sequence[TableInfo]
    schemas: Sequence[Schema]
    has_dead_letters: bool


_COLUMNS = tuple(field.name for field in fields(PartitionRow) if field.name not in ("replicas", "isr"))


def _facts(call: Call) -> TopicFacts:
    topic = call.topic(call.path["topic"])
    log_dirs = call.cluster.log_dirs()

    cluster = call.cluster.of(topic)

    def read(connection: sa.Connection) -> tuple[list[PartitionRow], list[TableInfo]]:
        now = cluster.store.clock(connection)
        [described] = describe(connection, [topic], now)
        used = usage(connection, [topic.topic_id])
        tails = sa.select(PARTITION.partition, PARTITION.tail_bytes).where(PARTITION.topic_id == topic.topic_id)
        tail_bytes: dict[int, int] = dict(tuple(row) for row in connection.execute(tails))
        rows = [
            _partition_row(part, used.get((topic.topic_id, part.partition), Usage()), tail_bytes[part.partition])
            for part in described.partitions
        ]
        tables = [
            replace(table, location=redact(table.location))
            for table in describe_tables(connection, [topic], log_dirs, now.wall_ms)[topic.topic_id]
        ]
        return rows, tables

    rows, tables = cluster.store.read(read)
    schemas, has_dead_letters = call.cluster.store.read(
        lambda connection: (_schemas(connection, topic), is_dead_letter_topic(connection, topic))
    )
    rates = call.snapshots.rates.get()
    return TopicFacts(
        topic.name,
        topic.uuid,
        is_internal(topic.name),
        topic.name in favourites(call),
        topic.created_ms,
        topic.replication_factor,
        topic.partition_count,
        {name: sum(getattr(row, name) for row in rows) for name in Usage._fields},
        sum(row.tail_bytes for row in rows),
        None if rates is None else rates.get(topic.name, 0.0),
        listing(rows, call.query, columns=_COLUMNS, sort="partition", name=lambda row: f"{row.partition:06}"),
        skew(rows),
        config_rows(topic),
        _groups(call, topic.name),
        tables,
        schemas,
        has_dead_letters,
    )


def _partition_row(part: PartitionInfo, used: Usage, tail_bytes: int) -> PartitionRow:
    behind = len(part.isr) < len(part.replicas)
    return row_of(
        PartitionRow,
        part,
        replicas=[replica.broker_id for replica in part.replicas],
        state="offline" if part.offline else "under-replicated" if behind else "",
        tail_bytes=tail_bytes,
        **used._asdict(),
    )


def skew(rows: Sequence[PartitionRow]) -> Skew | None:
    """Return the skew of a topic, or None for a topic of one partition. Pure.

    The skew is measured in bytes, or in records if no partition has bytes.
    """
    if len(rows) < 2:
        return None
    largest = max(rows, key=lambda row: (row.bytes, row.records))
    size = sum(row.bytes for row in rows)
    own, total = (largest.bytes, size) if size else (largest.records, sum(row.records for row in rows))
    return Skew(largest.partition, largest.records, largest.bytes, own * len(rows) / total if total else None)


def config_rows(topic: Topic) -> list[ConfigRow]:
    """Return all configs of a topic, without passwords in addresses."""
    values = topic.config.as_text()
    return [
        row_of(ConfigRow, each, value=redact(values[each.name]), is_set=each.name in topic.overrides)
        for each in definitions()
    ]


def _groups(call: Call, topic: str) -> list[GroupLag]:
    snapshot = call.snapshot()
    lags = lag_by_group(part for part in snapshot.groups if part.topic == topic)
    return [
        row_of(GroupLag, lag, group=group, members=snapshot.members.get(group, 0))
        for group, lag in sorted(lags.items())
    ]


def _schemas(connection: sa.Connection, topic: Topic) -> list[Schema]:
    schemas = []
    for part, definition in () if topic.columns is None else topic.columns.parts:
        notes = {column: f"field {field}" for field, column in definition.renamed.items()}
        notes |= dict.fromkeys(definition.replaced, "of an earlier schema")
        columns = [
            Column(f"{part.record}.{each.name}", type_ddl(each.type), notes.get(each.name, ""))
            for each in definition.fields
        ]
        configs = next(each for each in topic.config.parts if each.source == part.source)
        try:
            subject = subject_name(configs)
        except SparkLogError:
            subject = None
        own = subject is not None and not topic.config.schema_registry_url
        versions = [number for number, _ in version_ids(connection, subject.subject)] if own and subject else []
        schemas.append(
            Schema(
                part.source,
                definition.format,
                definition.framing,
                columns,
                None if subject is None else subject.subject,
                versions,
            )
        )
    return schemas


def _throughput(call: Call) -> Chart:
    topic = call.topic(call.path["topic"])
    lines = {"rate": "appended"}
    return chart(call, f"Throughput of {topic.name}", "records/s", Kind.TOPIC, topic.name, lines)


VIEWS = (
    View("/topics/{topic}", "topic.html", _facts),
    View("/topics/{topic}/throughput", "chart.html", _throughput),
)
