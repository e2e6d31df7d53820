"""Reads a compacted topic as a table with the last value of each key, and writes changes to it. (For joins with streams
see live_table.py.)
"""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Literal

import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, MapType, StringType, StructType, TimestampType

from spark_log.cluster.cluster import Cluster, cluster_of
from spark_log.cluster.log_dir_uris import location_of
from spark_log.cluster.topics import find_topic
from spark_log.errors import InvalidOptionError, OffsetOutOfRangeError, PolicyViolationError
from spark_log.log.columns.envelope import OP, SEQUENCE
from spark_log.log.columns.key_and_value import TYPED, VALUE
from spark_log.log.records.current_rule import CurrentRule
from spark_log.log.segments import plan as planner
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.spark.datasource.options.offset_json import EARLIEST
from spark_log.spark.datasource.read.read_topic import read_topic
from spark_log.spark.datasource.write.topic_write import write_topic
from spark_log.spark.delta_jars import is_loaded
from spark_log.spark.streams.formats.json_text import json_text
from spark_log.spark.streams.formats.parsing import column_named
from spark_log.spark.streams.outputs import AVAILABLE_NOW, TopicOutput, write_stream
from spark_log.tables.current.cut import shown_tables
from spark_log.tables.publication_state import CURRENT, table_folder

if TYPE_CHECKING:
    from spark_log.cluster.topics import Topic
    from spark_log.ids import LogDirId, TopicPartition
    from spark_log.log.segments.slices import Positions


def read_table(
    spark: SparkSession,
    cluster: "str | Cluster",
    topic: str,
    *,
    include_headers: bool = False,
    record: bool = False,
    current: Literal["auto", "never"] = "auto",
) -> DataFrame:
    """Return the last value of each key below the current high watermarks. Keys whose last value is null are left out.
    With table.current.order=sequence, the last value is that of the event with the largest sequence.

    The columns are key binary, value binary, partition int, offset bigint, timestamp timestamp, with `include_headers`
    headers, and with `record` the topic's typed columns. The result does not depend on compaction. Any topic can be
    read. Records without a key are left out. With value.envelope, an event that deletes its row counts as a null value.

    If the topic has a current-state table (table.current=delta) and the session has Delta's JARs, the result is this
    table, updated with the records that followed it: a scan instead of an aggregation of all records. Then a key in
    several partitions has a row for each partition. `current="never"` always aggregates. Raises ClusterNotFoundError,
    UnknownTopicOrPartitionError, InvalidOptionError.
    """
    if current not in ("auto", "never"):
        raise InvalidOptionError(f"current {current!r}: expected 'auto' or 'never'")
    with cluster_of(cluster) as opened:
        stored = opened.store.read(lambda connection: find_topic(connection, topic))
        rule = CurrentRule.of(stored.config, stored.columns)
        changes = partial(_changes, spark, opened, topic, rule, include_headers=include_headers, record=record)
        state = _State.of(opened, topic, record=record) if current == "auto" and is_loaded(spark) else None
        if state is not None:
            with contextlib.suppress(OffsetOutOfRangeError):  # records that the state needs have been deleted meanwhile
                frame = _with_tail(spark, changes, state)
                if frame is not None:
                    return frame
        rows = changes()
    return last_values(rows.repartition("key")).where(sf.col("value").isNotNull())


_COLUMNS = ("key", "value", "partition", "offset", "timestamp")
_SEQUENCE, _SINCE = "_sequence", "_since"

_BROADCAST_MAX = 1_000_000
"""If at most this number of records follows a current-state table, their keys are sent to all executors."""


@dataclass(frozen=True)
class _State:
    """Versions of current-state tables that together show a topic. `tables` has the location and version of each, and
    the partitions to read from it. `ends` has the offset below which each partition is shown, `watermarks` the high
    watermark of each partition, and `starts` the log start offsets above 0.
    """

    tables: Sequence[tuple[str, int, Collection[int]]]
    ends: Mapping[int, int]
    starts: Mapping[int, int]
    watermarks: Mapping[int, int]

    @property
    def tail_records(self) -> int:
        """Return the number of offsets between the tables' ends and the high watermarks."""
        return sum(self.watermarks.values()) - sum(self.ends.values())

    @classmethod
    def of(cls, cluster: Cluster, topic: str, *, record: bool) -> "_State | None":
        """Return the state of a topic. Return None if it has no current-state table, or if `record` is set and some of
        its files lack the present typed columns.
        """

        def read(
            connection: sa.Connection,
        ) -> "tuple[Topic, dict[LogDirId, tuple[int, dict[int, int]]], dict[TopicPartition, Positions]]":
            metadata = find_topic(connection, topic)
            shown = {} if record and _has_other_columns(connection, metadata) else shown_tables(connection, metadata)
            return metadata, shown, planner.positions(connection, [metadata])

        cluster = cluster.of(cluster.home.store.read(lambda connection: find_topic(connection, topic)))
        metadata, shown, limits = cluster.store.read(read)
        watermarks = {each.partition: limit.high_watermark for each, limit in limits.items()}
        starts = {each.partition: limit.log_start_offset for each, limit in limits.items() if limit.log_start_offset}
        infos = cluster.log_dirs()
        ends = dict.fromkeys(range(metadata.partition_count), 0)
        tables: list[tuple[str, int, Collection[int]]] = []
        for log_dir_id, (version, ends_here) in sorted(shown.items(), key=lambda each: -len(each[1][1])):
            partitions = [number for number, end in ends_here.items() if end and not ends.get(number, 1)]
            if partitions:
                location = location_of(infos[log_dir_id].uri, table_folder(metadata, CURRENT))
                tables.append((location, version, partitions))
                ends |= {number: ends_here[number] for number in partitions}
        return cls(tables, ends, starts, watermarks) if tables else None


def _has_other_columns(connection: sa.Connection, topic: "Topic") -> bool:
    """Whether a file of the topic was written with other typed columns than the present ones."""
    version = None if topic.columns is None else topic.columns.version
    others = SEGMENT.columns_version.is_distinct_from(version)
    query = sa.select(SEGMENT.base_offset).where(SEGMENT.topic_id == topic.topic_id, ~SEGMENT.inline, others).limit(1)
    return connection.execute(query).first() is not None


def _with_tail(spark: SparkSession, changes: Callable[..., DataFrame], state: _State) -> DataFrame | None:
    """Return the tables' rows, with the rows of keys in later records replaced by the current records of these keys.
    Return None if a table lacks new typed columns.

    Both parts belong to the same state of the log, because a table's version is a function of the log below `ends`.
    """
    tail = changes(offsets={number: (end, state.watermarks[number]) for number, end in state.ends.items()})
    last = last_in_partitions(tail)
    changed = last.select("partition", "key")
    if state.tail_records <= _BROADCAST_MAX:
        changed = sf.broadcast(changed)
    if (
        _SEQUENCE in tail.columns and state.tail_records
    ):  # the tables have no row for a key's deletion, whose sequence may be larger
        records = changes(offsets={number: (EARLIEST, end) for number, end in state.watermarks.items()})
        last = last_in_partitions(records.join(changed, ["partition", "key"], "left_semi"))
    columns = last.columns
    shown: list[DataFrame] = []
    for location, version, partitions in state.tables:
        table = spark.read.format("delta").option("versionAsOf", version).load(location)
        table = table.withColumn("offset", sf.col("base_offset") + sf.col("offset_delta"))
        if any(name not in table.columns for name in columns) or any(
            table.schema[name].dataType != last.schema[name].dataType for name in TYPED if name in columns
        ):
            return None
        table = table.where(sf.col("partition").isin(list(partitions)))
        for number, start in state.starts.items():
            if number in partitions:
                table = table.where((sf.col("partition") != number) | (sf.col("offset") >= start))
        shown.append(table.select(*columns))
    unchanged = reduce(DataFrame.unionByName, shown).join(changed, ["partition", "key"], "left_anti")
    return unchanged.select(*columns).unionByName(last.where(sf.col("value").isNotNull()))


def _changes(
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    rule: CurrentRule,
    *,
    include_headers: bool,
    record: bool,
    offsets: Mapping[int, tuple[int, int]] | None = None,
) -> DataFrame:
    """Return the records of a topic. A record that deletes its key has a null value. If the rule orders by sequence,
    there is a column for the sequences.
    """
    typed = record or rule.by_op
    rows = read_topic(spark, cluster, topic, offsets=offsets, include_headers=include_headers, record=typed)
    if rule.by_sequence:
        rows = rows.where(sf.col(f"{VALUE.record}.{OP}").isNotNull())
        rows = rows.withColumn(_SEQUENCE, sf.col(f"{VALUE.record}.{SEQUENCE}"))
    if rule.by_op:
        deleted = sf.coalesce(sf.col(f"{VALUE.record}.{OP}") == "d", sf.lit(False))
        rows = rows.withColumn("value", sf.when(~deleted, sf.col("value")))
    return rows if record else rows.drop(*TYPED)


def last_values(records: DataFrame) -> DataFrame:
    """Return the last record of each key.

    The columns are key, value, partition, offset, timestamp, and headers and typed columns if they are present.
    `records` must be partitioned by column key. The last record is the one with the largest offset. If partitions were
    added to the topic and a key has records in several, it is the one with the largest timestamp among the partitions'
    last records.
    """
    in_partition = last_in_partitions(records)
    columns = in_partition.columns
    last = in_partition.groupBy("key").agg(
        sf.max_by(sf.struct(*columns[1:]), sf.struct("timestamp", "partition")).alias("last")
    )
    return last.select("key", *(f"last.{name}" for name in columns[1:]))


def last_in_partitions(records: DataFrame) -> DataFrame:
    """Return the current record of each key in each partition, with the columns of `last_values`."""
    more = [name for name in records.columns if name in ("headers", *TYPED)]
    records = records.where(sf.col("key").isNotNull())
    order = ["offset"]
    if _SEQUENCE in records.columns:  # the rule of `log/records/winners.py`
        alone = sf.max(sf.when(sf.col(_SEQUENCE).isNull(), sf.col("offset")))
        since = sf.coalesce(alone.over(Window.partitionBy("key", "partition")), sf.lit(0))
        records = records.withColumn(_SINCE, since).where(sf.col("offset") >= sf.col(_SINCE))
        order = [_SEQUENCE, "offset"]
    last = records.groupBy("key", "partition").agg(
        sf.max_by(sf.struct("value", "offset", "timestamp", *more), sf.struct(*order)).alias("last")
    )
    return last.select("key", *(f"last.{name}" if name != "partition" else name for name in (*_COLUMNS[1:], *more)))


def table_changes(
    frame: DataFrame,
    key: str,
    *,
    value: "str | Sequence[str] | None" = None,
    deleted: str | None = None,
    timestamp: str | None = None,
) -> DataFrame:
    """Convert the rows of a batch or streaming frame to records that change a table, with columns key, value (and
    timestamp).

    `key` is a column of bytes, text or numbers (written as text). `value` is a column of bytes or text, whose nulls
    delete the key, or a list of columns, which are written as one JSON object. The default is all columns but `key`,
    `deleted` and `timestamp`. If column `deleted` is true in a row, the record is a tombstone, which deletes the key. A
    null key is an error when the rows are written; it names the column. Raises InvalidOptionError.
    """
    types = {field.name: field.dataType for field in frame.schema}
    named = {"key": key, "value": value, "deleted": deleted, "timestamp": timestamp}
    for argument, chosen in named.items():
        for column in [chosen] if isinstance(chosen, str) else chosen or ():
            if column not in types:
                raise InvalidOptionError(f"{argument} {column!r}: no such column: there are {', '.join(types)}")
    if isinstance(types[key], StructType | ArrayType | MapType):
        raise InvalidOptionError(f"key {key!r} is {types[key].simpleString()}, expected text, bytes or a number")
    if deleted is not None and not isinstance(types[deleted], BooleanType):
        raise InvalidOptionError(f"deleted {deleted!r} is {types[deleted].simpleString()}, expected boolean")
    if timestamp is not None and not isinstance(types[timestamp], TimestampType):
        raise InvalidOptionError(f"timestamp {timestamp!r} is {types[timestamp].simpleString()}, expected timestamp")
    if isinstance(value, str):
        if not isinstance(types[value], StringType | BinaryType):
            raise InvalidOptionError(
                f"value {value!r} is {types[value].simpleString()}, expected text or bytes; for JSON: value=[{value!r}]"
            )
        content = column_named(value)
    else:
        columns = [name for name in types if name not in (key, deleted, timestamp)] if value is None else list(value)
        if not columns:
            raise InvalidOptionError("value: no columns are left for it: name one")
        content = json_text(frame, sf.struct(*(column_named(name) for name in columns)))
    if deleted is not None:
        content = sf.when(sf.coalesce(column_named(deleted), sf.lit(False)), sf.lit(None)).otherwise(content)
    bytes_ = column_named(key)
    if not isinstance(types[key], StringType | BinaryType):
        bytes_ = bytes_.cast(StringType())
    null = sf.raise_error(sf.lit(f"key: column {key!r} is null in a row, and a table needs a key in every record"))
    chosen_columns = [sf.coalesce(bytes_.cast(BinaryType()), null).alias("key"), content.alias("value")]
    if timestamp is not None:
        chosen_columns.append(column_named(timestamp).alias("timestamp"))
    return frame.select(*chosen_columns)


def write_table(
    frame: DataFrame,
    cluster: str,
    topic: str,
    *,
    key: str,
    value: "str | Sequence[str] | None" = None,
    deleted: str | None = None,
    timestamp: str | None = None,
    checkpoint: str | None = None,
    trigger: str = AVAILABLE_NOW,
) -> StreamingQuery | None:
    """Append `table_changes` of `frame` to a compacted topic: upserts, and tombstones for deletions.

    Rows of the same key in one write have no order, so reduce them to one row first (`keep_last`). A streaming frame
    needs `checkpoint`; returns the running query (for `trigger`, see `write_stream`). Raises PolicyViolationError for a
    topic that is not compacted, and the errors of `table_changes`.
    """
    with Cluster.open(cluster) as opened:
        check_compacted(opened.store.read(lambda connection: find_topic(connection, topic)))
    changes = table_changes(frame, key, value=value, deleted=deleted, timestamp=timestamp)
    if frame.isStreaming:
        if checkpoint is None:
            raise InvalidOptionError("checkpoint: needed for a streaming frame")
        return write_stream(changes, TopicOutput(cluster, topic), checkpoint=checkpoint, trigger=trigger)
    if checkpoint is not None:
        raise InvalidOptionError(f"checkpoint {checkpoint!r}: only for a streaming frame")
    write_topic(changes, cluster, topic)
    return None


def check_compacted(topic: "Topic") -> None:
    """Raise PolicyViolationError for a topic without cleanup.policy=compact. The message explains how to change it."""
    if not topic.config.compacts:
        raise PolicyViolationError(
            f"topic {topic.name!r} is not compacted (cleanup.policy is"
            f" {','.join(sorted(topic.config.cleanup_policy))}), so old values of a key would accumulate or expire:"
            f" `spark-log topic alter {topic.name} --config cleanup.policy=compact`"
        )
