"""`read_topic`: a topic on Spark's own Parquet scan, with its column pruning and push-down. Batch only.

The scan knows of each row only which file it is from; partition, base offset and timestamp type are facts of the file.
A row finds them by the file's size, a constant of the scan's metadata that costs nothing to compare, and by its name as
well where two files have the same size. (Spark would take them from a Delta table's partition columns, but planning
that costs 0.2 to 0.5 s a query.)
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from spark_log.cluster.log_dir import LogDir, open_log_dir, segment_path
from spark_log.errors import CorruptRecordError, SparkLogError
from spark_log.ids import LogDirId, OffsetRange
from spark_log.log.fetch import BAD_REPLICA, Fetcher, no_good_replica
from spark_log.log.slices import LogDirs, Slice
from spark_log.records.schema import read_schema

if TYPE_CHECKING:
    from spark_log.cluster.cluster import Cluster

logger = logging.getLogger(__name__)

_STORED = "offset_delta int, timestamp timestamp, key binary, value binary"
_HEADERS = ", headers array<struct<key:string,value:binary>>"
_IN_EXPRESSION_MAX = 64
"""Segments up to which a row finds its file's facts by an expression: it takes no time that can be measured, a join
with them a fifth of an aggregate. Beyond, the code of the expression would grow too large for the JVM to compile it
well."""

_VERIFY = "parquet.page.verify-checksum.enabled"


def read_topic(
    spark: SparkSession,
    cluster: "str | Cluster",
    topic: str,
    *,
    include_headers: bool = False,
    client_rack: str | None = None,
) -> DataFrame:
    """The records of a topic from the log start offsets to the high watermarks, as of now: one snapshot.

    The columns of `format("spark_log")`: key binary, value binary, topic string, partition int, offset bigint,
    timestamp timestamp, timestampType int, and with `include_headers` headers. Page checksums are verified. The inline
    tail of the same snapshot travels inside the plan. `cluster` is an address or an open Cluster. Segments are read
    from a replica in `client_rack`, if there is one.

    Raises ClusterNotFoundError, UnknownTopicOrPartitionError.
    """
    from spark_log.cluster.cluster import Cluster
    from spark_log.log.log import Log

    opened = Cluster.open(cluster) if isinstance(cluster, str) else cluster
    log = Log(opened, holder="read_topic")
    try:
        found = log.find_topic(topic)
        ranges = {tp: OffsetRange(start, end) for tp, (start, end) in log.positions(found).items()}
        plan = log.plan(ranges, topics={topic: found}, rack=client_rack or None)
    finally:
        log.close()
        if opened is not cluster:
            opened.close()
    sealed = [piece for piece in plan.slices if piece.data is None]
    tail = [piece for piece in plan.slices if piece.data is not None]
    parts = []
    if sealed:
        parts.append(_sealed(spark, topic, sealed, plan.log_dirs, include_headers))
    if tail or not sealed:
        schema = read_schema(include_headers)
        batches = list(Fetcher(plan.log_dirs).read(tail, schema))
        table = pa.Table.from_batches(batches, schema) if batches else schema.empty_table()
        parts.append(spark.createDataFrame(table))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def _sealed(
    spark: SparkSession, topic: str, sealed: Sequence[Slice], log_dirs: LogDirs, include_headers: bool
) -> DataFrame:
    files = [_for_spark(location) for location in _whole_files(sealed, log_dirs)]
    spark.conf.set(_VERIFY, "true")  # reaches the Parquet reader with the session's other settings
    reader = spark.read.schema(_STORED + (_HEADERS if include_headers else ""))
    # whatever the session says: a segment that cannot be read is an error, not fewer rows
    rows = reader.options(ignoreMissingFiles=False, ignoreCorruptFiles=False).parquet(*files)
    frame = _with_facts(spark, rows, sealed)
    offset = F.col("base_offset") + F.col("offset_delta")
    if any(piece.start > piece.base_offset for piece in sealed):
        frame = frame.where(offset >= F.col("start"))
    columns: list[Column | str] = [
        "key",
        "value",
        F.lit(topic).alias("topic"),
        "partition",
        offset.alias("offset"),
        "timestamp",
        "timestampType",
    ]
    return frame.select(*columns, *(["headers"] if include_headers else []))


def _whole_files(sealed: Sequence[Slice], log_dirs: LogDirs) -> list[str]:
    """Where each segment lies whole: in its first log dir, or the next one if that is not the one that is meant, cannot
    be read, or has no file of the segment's size there.

    Spark passes over an empty file without a word, and rows of a file with a size of its own would join nothing.
    Raises what `fetch.no_good_replica` makes of it if no log dir has a segment.
    """
    opened: dict[LogDirId, LogDir] = {}
    paths = [segment_path(piece.folder, piece.partition, piece.name) for piece in sealed]
    found: dict[int, str] = {}
    errors: dict[int, list[SparkLogError]] = {number: [] for number in range(len(sealed))}
    for attempt in range(max(len(piece.log_dir_ids) for piece in sealed)):
        asked: dict[LogDirId, list[int]] = {}
        for number, piece in enumerate(sealed):
            if number not in found and attempt < len(piece.log_dir_ids):
                asked.setdefault(piece.log_dir_ids[attempt], []).append(number)
        for log_dir_id, numbers in asked.items():
            try:
                log_dir = opened[log_dir_id] = opened.get(log_dir_id) or open_log_dir(log_dirs[log_dir_id])
                sizes = log_dir.sizes([paths[number] for number in numbers])
            except BAD_REPLICA as error:
                logger.warning("%s: %d segments are not read from there: %s", log_dirs[log_dir_id], len(numbers), error)
                for number in numbers:
                    errors[number].append(error)
                continue
            for number, size in zip(numbers, sizes, strict=True):
                location = log_dir.location(paths[number])
                if size == sealed[number].size:
                    found[number] = location
                else:
                    bad = f"segment {location} has {size} bytes, expected {sealed[number].size}"
                    errors[number].append(CorruptRecordError(bad))
    for number, piece in enumerate(sealed):
        if number not in found:
            raise no_good_replica(piece, errors[number])
    return [found[number] for number in range(len(sealed))]


def _with_facts(spark: SparkSession, rows: DataFrame, sealed: Sequence[Slice]) -> DataFrame:
    """`rows` with the columns partition, base_offset, start and timestampType of the file that each is from."""
    sizes = {piece.size for piece in sealed}
    if len(sizes) == len(sealed) <= _IN_EXPRESSION_MAX:
        by_size = sorted(sealed, key=lambda piece: piece.size)
        facts = {
            "partition": [f"{piece.partition}" for piece in by_size],
            "base_offset": [f"{piece.base_offset}L" for piece in by_size],
            "start": [f"{piece.start}L" for piece in by_size],
            "timestampType": [f"{piece.timestamp_type}" for piece in by_size],
        }
        bounds = [piece.size for piece in by_size]
        sized = rows.withColumn("file_size", F.col("_metadata.file_size"))
        return sized.withColumns({name: F.expr(_choose(bounds, values)) for name, values in facts.items()})
    segments = F.broadcast(_segments(spark, sealed))
    same_file = F.col("_metadata.file_size") == segments["file_size"]
    if len(sizes) < len(sealed):
        same_file &= F.col("_metadata.file_name") == segments["file_name"]
    return rows.join(segments, same_file)


def _choose(sizes: Sequence[int], values: Sequence[str]) -> str:
    """SQL for the value that belongs to column file_size, one of `sizes` (ascending): a binary search."""
    if len(set(values)) == 1:
        return values[0]
    middle = len(sizes) // 2
    below, above = _choose(sizes[:middle], values[:middle]), _choose(sizes[middle:], values[middle:])
    return f"IF(file_size < {sizes[middle]}L, {below}, {above})"


def _segments(spark: SparkSession, sealed: Sequence[Slice]) -> DataFrame:
    """What is to be known of each file; Spark keeps it inside the plan (a local relation)."""
    return spark.createDataFrame(
        pa.table(
            {
                "file_size": pa.array([piece.size for piece in sealed], pa.int64()),
                "file_name": pa.array([piece.name for piece in sealed], pa.string()),
                "partition": pa.array([piece.partition for piece in sealed], pa.int32()),
                "base_offset": pa.array([piece.base_offset for piece in sealed], pa.int64()),
                "start": pa.array([piece.start for piece in sealed], pa.int64()),
                "timestampType": pa.array([piece.timestamp_type for piece in sealed], pa.int32()),
            }
        )
    )


def _for_spark(location: str) -> str:
    """Hadoop's name of an S3 location; the others are the same."""
    if location.startswith("s3://"):
        return "s3a://" + location.removeprefix("s3://")
    return location
