"""`read_topic` reads a topic with Spark's own Parquet scan (`log.segments.segment_scan`), and its tail. Batch only."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from spark_log.errors import (
    InvalidConfigurationError,
    InvalidOptionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.records.read_shape import STORED
from spark_log.log.records.schema import read_schema
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.segment_scan import scan_segments
from spark_log.log.segments.slices import LogDirs, Positions, Slice, TimestampBounds
from spark_log.log.segments.typed_columns import add_columns, without_columns
from spark_log.spark.datasource.options.offset_json import EARLIEST, LATEST

if TYPE_CHECKING:
    import sqlalchemy as sa

    from spark_log.cluster.cluster import Cluster
    from spark_log.log.columns.topic_columns import TopicColumns
    from spark_log.log.reader import ReadPlan


def read_topic(
    spark: SparkSession,
    cluster: "str | Cluster",
    topic: str,
    *,
    offsets: Mapping[int, tuple[int, int]] | None = None,
    since: datetime | int | None = None,
    include_headers: bool = False,
    record: bool = False,
    client_rack: str | None = None,
) -> DataFrame:
    """Return the records of a topic from log start offsets to high watermarks, in one snapshot of the metadata.

    `offsets` limits the read to some partitions, each from a start offset to an exclusive end offset; -2 is the log
    start offset and -1 the high watermark, as in startingOffsets. `since` limits it to records with this timestamp or a
    later one: a datetime (without a time zone it is local time), or milliseconds since 1970. Only segments that may
    have such records are read.

    The columns are those of `format("spark_log")`: key binary, value binary, topic string, partition int, offset
    bigint, timestamp timestamp, timestampType int, and with `include_headers` headers. `record` adds the typed columns.
    They are key_record_error string and key_record, a struct of the fields of key.schema, if the topic's keys are
    typed; record_error string and record, with the fields of value.schema, if its values are typed. Spark reads only
    the fields that the query needs from the files. Python workers decode records in the inline tail and in files
    without the current columns.

    If the size or footer of a file is wrong, another replica is read; the scan verifies page checksums. The inline tail
    of the same snapshot is part of the plan.
    `cluster` is an address or an open Cluster. Segments are read from a replica in `client_rack`, if there is one.
    Raises ClusterNotFoundError, UnknownTopicOrPartitionError, OffsetOutOfRangeError for `offsets` that are not between
    log start offset and high watermark, and InvalidConfigurationError if Spark's class path lacks the file system of an
    object store (hadoop-aws for S3), or with `record` for a topic without typed columns.
    """
    from spark_log.cluster.cluster import cluster_of
    from spark_log.cluster.topics import find_topic
    from spark_log.log.reader import RangesToRead
    from spark_log.log.segments import plan as planner
    from spark_log.maintenance.client_log import TaskReader

    since_ms = None if since is None else _milliseconds(since)

    def find(connection: "sa.Connection") -> RangesToRead:
        current = find_topic(connection, topic)
        limits = planner.positions(connection, [current])
        return RangesToRead({topic: current}, _ranges(topic, limits, offsets))

    with cluster_of(cluster) as opened, closing(TaskReader(opened, holder="read_topic")) as log:
        found = log.find_topic(topic)
        columns = found.columns if record else None
        plan = log.at(found.store_id).plan_in_snapshot(find, TimestampBounds(since_ms), client_rack or None)
        if record and plan.slices:
            columns = plan.slices[0].columns  # of the snapshot
    if record and columns is None:
        raise InvalidConfigurationError(f"topic {topic!r} has no typed columns: set value.format and value.schema")
    limited = offsets is not None
    frame = read_plan(spark, topic, plan, include_headers=include_headers, columns=columns, within_segments=limited)
    return frame if since_ms is None else frame.where(F.col("timestamp") >= F.timestamp_millis(F.lit(since_ms)))


def _milliseconds(since: datetime | int) -> int:
    """Return milliseconds since 1970. Raises InvalidOptionError."""
    if isinstance(since, datetime):
        since_epoch = since.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        return -(-since_epoch // timedelta(milliseconds=1))  # rounded up: no earlier record
    if isinstance(since, bool) or not isinstance(since, int):
        raise InvalidOptionError(f"since {since!r}: expected a datetime, or milliseconds since 1970")
    return since


def _ranges(
    topic: str, limits: Mapping[TopicPartition, Positions], offsets: Mapping[int, tuple[int, int]] | None
) -> dict[TopicPartition, OffsetRange]:
    """Return the offsets to read. Raises UnknownTopicOrPartitionError, OffsetOutOfRangeError, InvalidOptionError."""
    if offsets is None:
        return {topic_partition: OffsetRange(*limit) for topic_partition, limit in limits.items()}
    ranges: dict[TopicPartition, OffsetRange] = {}
    for number, bounds in offsets.items():
        topic_partition = TopicPartition(topic, number)
        limit = limits.get(topic_partition)
        if limit is None:
            raise UnknownTopicOrPartitionError(f"partition {topic_partition}: unknown topic or partition")
        try:
            start, end = ({EARLIEST: limit[0], LATEST: limit[1]}.get(int(offset), int(offset)) for offset in bounds)
        except (TypeError, ValueError):
            raise InvalidOptionError(
                f"offsets {offsets!r}: expected {{partition: (start, end)}}, where -2 is the log start offset and -1"
                " the high watermark"
            ) from None
        if not limit.log_start_offset <= start <= end <= limit.high_watermark:
            raise OffsetOutOfRangeError(
                f"{topic_partition}: offsets [{start}, {end}) are not between the log start offset"
                f" {limit.log_start_offset} and the high watermark {limit.high_watermark}"
            )
        ranges[topic_partition] = OffsetRange(start, end)
    return ranges


def read_plan(
    spark: SparkSession,
    topic: str,
    plan: "ReadPlan",
    *,
    include_headers: bool = False,
    columns: "TopicColumns | None" = None,
    within_segments: bool = False,
) -> DataFrame:
    """Return the records of a plan's slices, all of one topic, with the columns of `read_topic`. `columns` adds the
    typed columns.

    A file is read to its end, so its slice must end where the segment does. With `within_segments` it may end before.
    """
    schema = read_schema(include_headers, typed=None if columns is None else columns.fields)
    sealed = [piece for piece in plan.slices if piece.data is None]
    tail = [piece for piece in plan.slices if piece.data is not None]
    stored = [piece for piece in sealed if columns is None or piece.columns_version == columns.version]
    to_decode = [piece for piece in sealed if piece not in stored]
    parts = []
    if stored:
        parts.append(_sealed(spark, topic, stored, plan.log_dirs, schema, within_segments))
    if to_decode:
        assert columns is not None
        frame = _sealed(spark, topic, to_decode, plan.log_dirs, without_columns(schema), within_segments)
        parts.append(_decoded(frame, schema, columns))
    if tail or not sealed:
        # typed columns may be much larger than the bytes from which they are decoded, so Python workers decode them
        bare = schema if columns is None else without_columns(schema)
        batches = list(Fetcher(plan.log_dirs).read(tail, bare))
        table = pa.Table.from_batches(batches, bare) if batches else bare.empty_table()
        frame = spark.createDataFrame(table)
        parts.append(frame if columns is None else _decoded(frame, schema, columns))
    return reduce(DataFrame.unionByName, parts)


def _sealed(
    spark: SparkSession,
    topic: str,
    sealed: Sequence[Slice],
    log_dirs: LogDirs,
    schema: pa.Schema,
    within_segments: bool,
) -> DataFrame:
    facts = {
        "partition": pa.array([piece.partition for piece in sealed], pa.int32()),
        "base_offset": pa.array([piece.base_offset for piece in sealed], pa.int64()),
        "start": pa.array([piece.start for piece in sealed], pa.int64()),
        "timestampType": pa.array([piece.timestamp_type for piece in sealed], pa.int32()),
    }
    of_files = pa.schema([pa.field("offset_delta", pa.int32()), *(each for each in schema if each.name in STORED)])
    if within_segments:
        facts["end"] = pa.array([piece.end for piece in sealed], pa.int64())
    frame = scan_segments(spark, sealed, log_dirs, from_arrow_schema(of_files), facts)
    offset = F.col("base_offset") + F.col("offset_delta")
    if any(piece.start > piece.base_offset for piece in sealed):
        frame = frame.where(offset >= F.col("start"))
    if within_segments:
        frame = frame.where(offset < F.col("end"))
    computed = {"topic": F.lit(topic).alias("topic"), "offset": offset.alias("offset")}
    return frame.select(*(computed.get(name, F.col(name)) for name in schema.names))


def _decoded(frame: DataFrame, schema: pa.Schema, columns: "TopicColumns") -> DataFrame:
    """Return `frame`, read with `without_columns(schema)`, with the typed columns added."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return add_columns(batches, columns, schema)

    return frame.mapInArrow(decode, from_arrow_schema(schema))
