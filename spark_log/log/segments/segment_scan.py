"""Segment files on Spark's own Parquet scan, with its column pruning and push-down; page checksums are verified.

The scan knows of each row only which file it is from; partition, base offset and the like are facts of the file. A row
finds them by the file's size, a constant of the scan's metadata that costs nothing to compare, and by its name as well
where two files have the same size. (Spark would take them from a Delta table's partition columns, but planning that
costs 0.2 to 0.5 s a query.)
"""

import logging
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructType

from spark_log.cluster.log_dir import LogDir, open_log_dir, segment_path
from spark_log.errors import CorruptRecordError, SparkLogError
from spark_log.ids import LogDirId
from spark_log.log.segments.fetcher import BAD_REPLICA, all_replicas_bad_error
from spark_log.log.segments.hadoop import check_file_systems
from spark_log.log.segments.slices import LogDirs, Slice

logger = logging.getLogger(__name__)

_IN_EXPRESSION_MAX = 64
"""Segments up to which a row finds its file's facts by an expression: it takes no time that can be measured, a join
with them a fifth of an aggregate. Beyond, the code of the expression would grow too large for the JVM to compile it
well."""

_VERIFY = "parquet.page.verify-checksum.enabled"


def scan_segments(
    spark: SparkSession,
    sealed: Sequence[Slice],
    log_dirs: LogDirs,
    columns: str | StructType,
    facts: Mapping[str, pa.Array],
) -> DataFrame:
    """All rows of the slices' files: the stored `columns` (DDL, or a type), and a column for each of `facts`.

    A fact is an int32 or int64 array with a value for each slice, in their order. Raises the error of
    `fetcher.all_replicas_bad_error` if no log dir has a segment; InvalidConfigurationError if Spark lacks the JARs
    of an object store.
    """
    files = [_for_spark(location) for location in _whole_files(sealed, log_dirs)]
    check_file_systems(spark, files)
    spark.conf.set(_VERIFY, "true")  # reaches the Parquet reader with the session's other settings
    # overrides the session: a segment that cannot be read is an error, not fewer rows
    reader = spark.read.schema(columns).options(ignoreMissingFiles=False, ignoreCorruptFiles=False)
    return _with_facts(spark, reader.parquet(*files), sealed, facts)


def _whole_files(sealed: Sequence[Slice], log_dirs: LogDirs) -> list[str]:
    """The location of each segment: in its first log dir, or in the next one if that has another id, cannot be read, or
    has no file of the segment's size.

    Spark skips an empty file without an error, and the rows of a file of another size would join nothing.
    """
    opened: dict[LogDirId, LogDir] = {}
    paths = [segment_path(piece.folder, piece.partition, piece.name) for piece in sealed]
    locations: dict[int, str] = {}
    errors: dict[int, list[SparkLogError]] = {number: [] for number in range(len(sealed))}
    for attempt in range(max(len(piece.log_dir_ids) for piece in sealed)):
        asked: dict[LogDirId, list[int]] = {}
        for number, piece in enumerate(sealed):
            if number not in locations and attempt < len(piece.log_dir_ids):
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
                    locations[number] = location
                else:
                    bad = f"segment {location} has {size} bytes, expected {sealed[number].size}"
                    errors[number].append(CorruptRecordError(bad))
    for number, piece in enumerate(sealed):
        if number not in locations:
            raise all_replicas_bad_error(piece, errors[number])
    return [locations[number] for number in range(len(sealed))]


def _with_facts(
    spark: SparkSession, rows: DataFrame, sealed: Sequence[Slice], facts: Mapping[str, pa.Array]
) -> DataFrame:
    """`rows` with the facts of the file that each is from."""
    sizes = {piece.size for piece in sealed}
    if len(sizes) == len(sealed) <= _IN_EXPRESSION_MAX:
        order = sorted(range(len(sealed)), key=lambda number: sealed[number].size)
        bounds = [sealed[number].size for number in order]
        sized = rows.withColumn("file_size", F.col("_metadata.file_size"))
        chosen = {name: F.expr(_choose(bounds, _literals(values.take(order)))) for name, values in facts.items()}
        return sized.withColumns(chosen).drop("file_size")
    # the facts of the files stay inside the plan, as a local relation
    named = {
        "file_size": pa.array([piece.size for piece in sealed], pa.int64()),
        "file_name": pa.array([piece.name for piece in sealed], pa.string()),
    }
    segments = F.broadcast(spark.createDataFrame(pa.table({**named, **facts})))
    same_file = F.col("_metadata.file_size") == segments["file_size"]
    if len(sizes) < len(sealed):
        same_file &= F.col("_metadata.file_name") == segments["file_name"]
    return rows.join(segments, same_file).drop("file_size", "file_name")


def _literals(values: pa.Array) -> list[str]:
    """The integers as SQL has them, by their type."""
    suffix = "L" if pa.types.is_int64(values.type) else ""
    return [f"{value}{suffix}" for value in values.to_pylist()]


def _choose(sizes: Sequence[int], values: Sequence[str]) -> str:
    """SQL for the value that belongs to column file_size, one of `sizes` (ascending): a binary search."""
    if len(set(values)) == 1:
        return values[0]
    middle = len(sizes) // 2
    below, above = _choose(sizes[:middle], values[:middle]), _choose(sizes[middle:], values[middle:])
    return f"IF(file_size < {sizes[middle]}L, {below}, {above})"


def _for_spark(location: str) -> str:
    """Hadoop's name of an S3 location; the others are the same."""
    if location.startswith("s3://"):
        return "s3a://" + location.removeprefix("s3://")
    return location
