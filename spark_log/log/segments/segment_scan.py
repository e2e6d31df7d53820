"""Reads segment files with Spark's own Parquet scan, its column pruning and push-down. Footers are verified before the
scan, and page checksums during it.

The scan knows only the file of each row; partition, base offset and the like are facts of the file. A row is joined to
them by the file's size, which is a constant of the scan's metadata and cheap to compare, and also by the file's name if
two files have the same size. (The partition columns of a Delta table could have them, but planning such a query takes
0.2 to 0.5 s more.)
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from spark_log.cluster.log_dir import LogDir, open_log_dir, segment_path
from spark_log.errors import InvalidConfigurationError, SparkLogError
from spark_log.ids import LogDirId
from spark_log.log.records.segment_open import ExpectedSegment, check_footer
from spark_log.log.segments.fetcher import BAD_REPLICA, all_replicas_bad_error
from spark_log.log.segments.slices import LogDirs, Slice
from spark_log.process import in_parallel

logger = logging.getLogger(__name__)

_IN_EXPRESSION_MAX = 64
"""Number of segments up to which an expression computes the facts of a row's file. The expression takes no measurable
time, while a join takes a fifth of the time of an aggregate. For more segments, the code of the expression would become
too large for the JVM to compile it well."""

_CHECK_THREADS = 16
_VERIFY = "parquet.page.verify-checksum.enabled"

_S3A = (
    "spark-submit --packages org.apache.hadoop:hadoop-aws:{hadoop} (or spark.jars.packages). Its settings are"
    " spark.hadoop.fs.s3a.access.key and .secret.key, unless AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set, and"
    " for a server of your own spark.hadoop.fs.s3a.endpoint=http://host:port, .path.style.access=true"
)
_AZURE = "spark-submit --packages org.apache.hadoop:hadoop-azure:{hadoop} (or spark.jars.packages)"
_TO_DO = {"s3a": _S3A, "abfs": _AZURE, "abfss": _AZURE, "gs": "spark-submit --jars with Google's gcs-connector"}


def scan_segments(
    spark: SparkSession,
    sealed: Sequence[Slice],
    log_dirs: LogDirs,
    columns: str | StructType,
    facts: Mapping[str, pa.Array],
) -> DataFrame:
    """Return all rows of the slices' files, with the stored `columns` (DDL, or a type) and a column for each of
    `facts`.

    A fact is an int32 or int64 array with a value for each slice, in the order of the slices. Raises the error of
    `fetcher.all_replicas_bad_error` if no log dir has a segment; InvalidConfigurationError if Spark lacks the JARs of
    an object store.
    """
    files = [for_spark(location) for location in whole_files(sealed, log_dirs)]
    check_file_systems(spark, files)
    spark.conf.set(_VERIFY, "true")  # reaches the Parquet reader with the session's other settings
    # Overrides the session's settings, so that a segment that cannot be read raises an error instead of losing rows.
    reader = spark.read.schema(columns).options(ignoreMissingFiles=False, ignoreCorruptFiles=False)
    literal = (re.sub(r"[\\*?{}\[\]]", r"\\\g<0>", file) for file in files)  # Spark takes each path for a pattern
    return _with_facts(spark, reader.parquet(*literal), sealed, facts)


def check_file_settings(spark: SparkSession) -> None:
    """Let the session check page checksums, for a query that plans its own scan. Raises InvalidConfigurationError if
    the session's settings would let it skip a file that cannot be read.
    """
    for name in ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles"):
        if str(spark.conf.get(name)).lower() == "true":
            raise InvalidConfigurationError(f"{name} is true: a stream would lose the records of such a file")
    spark.conf.set(_VERIFY, "true")  # reaches the Parquet reader with the session's other settings


def whole_files(sealed: Sequence[Slice], log_dirs: LogDirs) -> list[str]:
    """Return the location of each segment: in its first log dir, or in the next one if the first has another id, cannot
    be read, or has no file with the segment's size and an intact footer.

    Spark checks neither: it skips an empty file without an error, and rows or columns that a damaged footer leaves out.
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
            except BAD_REPLICA as error:
                logger.warning("%s: %d segments are not read from there: %s", log_dirs[log_dir_id], len(numbers), error)
                for number in numbers:
                    errors[number].append(error)
                continue
            checks = [(log_dir, paths[number], sealed[number]) for number in numbers]
            problems = in_parallel(_problem, checks, _CHECK_THREADS, "spark-log-footers")
            for number, problem in zip(numbers, problems, strict=True):
                if problem is None:
                    locations[number] = log_dir.location(paths[number])
                else:
                    errors[number].append(problem)
    for number, piece in enumerate(sealed):
        if number not in locations:
            raise all_replicas_bad_error(piece, errors[number])
    return [locations[number] for number in range(len(sealed))]


def _problem(check: tuple[LogDir, str, Slice]) -> SparkLogError | None:
    """Return the error of a segment's file, without reading its pages, or None."""
    log_dir, path, piece = check
    try:
        check_footer(log_dir.open(path), ExpectedSegment(log_dir.location(path), piece.size, piece.record_count))
    except BAD_REPLICA as error:
        return error
    return None


def _with_facts(
    spark: SparkSession, rows: DataFrame, sealed: Sequence[Slice], facts: Mapping[str, pa.Array]
) -> DataFrame:
    sizes = {piece.size for piece in sealed}
    if len(sizes) == len(sealed) <= _IN_EXPRESSION_MAX:
        order = sorted(range(len(sealed)), key=lambda number: sealed[number].size)
        bounds = [sealed[number].size for number in order]
        sized = rows.withColumn("file_size", F.col("_metadata.file_size"))
        chosen = {name: F.expr(_choose(bounds, _literals(values.take(order)))) for name, values in facts.items()}
        return sized.withColumns(chosen).drop("file_size")
    # The facts are part of the query plan, as a local relation.
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
    """Return the integers as SQL literals of their type."""
    suffix = "L" if pa.types.is_int64(values.type) else ""
    return [f"{value}{suffix}" for value in values.to_pylist()]


def _choose(sizes: Sequence[int], values: Sequence[str]) -> str:
    """Return an SQL expression for the value of the file whose size is in column file_size: a binary search in `sizes`,
    which are ascending.
    """
    if len(set(values)) == 1:
        return values[0]
    middle = len(sizes) // 2
    below, above = _choose(sizes[:middle], values[:middle]), _choose(sizes[middle:], values[middle:])
    return f"IF(file_size < {sizes[middle]}L, {below}, {above})"


def check_file_systems(spark: SparkSession, files: Iterable[str]) -> None:
    """Raise InvalidConfigurationError, with the package to install, if Spark lacks the file system of a file."""
    schemes = {scheme for scheme, separator, _ in (file.partition("://") for file in files) if separator}
    if not schemes or is_remote():
        return
    jvm: Any = spark.sparkContext._jvm
    hadoop = jvm.org.apache.hadoop
    for scheme in sorted(schemes):
        try:
            hadoop.fs.FileSystem.getFileSystemClass(scheme, spark.sparkContext._jsc.hadoopConfiguration())
        except Py4JJavaError:
            to_do = _TO_DO.get(scheme, "put the JAR of one on its class path (spark.jars)")
            raise InvalidConfigurationError(
                f"Spark has no file system for {scheme}:// on its class path, which this read needs"
                f' (format("spark_log") does not): {to_do.format(hadoop=hadoop.util.VersionInfo.getVersion())}'
            ) from None


def for_spark(location: str) -> str:
    """Return the location as Hadoop names it: with s3a:// instead of s3://."""
    if location.startswith("s3://"):
        return "s3a://" + location.removeprefix("s3://")
    return location
