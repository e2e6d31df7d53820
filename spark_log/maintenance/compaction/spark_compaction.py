"""Compacts on Spark, over many partitions of many topics at once.

    scan      read only offsets and keys of all segments, with Spark's own Parquet reader
    reduce    find the last offset of each key. An offset is one long, so Spark aggregates by hash, also before the
              shuffle: a key that most of the records have causes no skew, and Spark manages the memory and spills
    write     one task for each unit (a run of segments that one file replaces) writes the records that stay
    swap      on the driver: only the driver has access to the metadata store

An offset is sent as its *code*, (number of the unit << 32) + (offset - base offset of the unit). The units of a
partition are numbered by ascending offset, so the larger of two codes belongs to the later record.
"""

import logging
import pickle
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir, open_log_dir, segment_path
from spark_log.errors import CorruptRecordError, SparkLogError, StorageUnavailableError, redact
from spark_log.errors.first_failure import FirstFailure
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.records.current_rule import CurrentRule
from spark_log.log.segments.fetcher import BAD_REPLICA, all_replicas_bad_error
from spark_log.log.segments.segment_copy import SegmentFile, is_whole, repair
from spark_log.log.segments.slices import LogDirs, Slice
from spark_log.maintenance.compaction.passes import (
    Compacting,
    CompactionPass,
    candidates,
    compacted_topics,
    find_due,
    plan_pass,
)
from spark_log.maintenance.compaction.unit import Compacted, Unit, compact_unit
from spark_log.maintenance.context import MaintenanceContext, work_in_each_store
from spark_log.maintenance.report import Report
from spark_log.text import count_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_END = (1 << 32) - 1
"""Takes the place of an offset in a code and marks the end of the unit. Offsets of a unit stay below 2**31."""
_TASKS_MAX = 10_000


def compact_on_spark(
    spark: "SparkSession",
    cluster: "str | Cluster",
    topics: Collection[str] | None = None,
    force: bool = False,
    *,
    progress: Callable[[str], None] = logger.info,
) -> list[Report]:
    """Compact the due partitions of these topics, or of all compacted topics; with `force` every partition that can be
    compacted.

    Returns a report for each topic that was changed or has notes. `progress` receives progress messages. Raises
    InvalidConfigurationError for a topic of `topics` that is not compacted, and UnknownTopicOrPartitionError for one
    that does not exist. If a unit fails, the error is raised when all other units are done.
    """
    reports: list[Report] = []
    try:
        reports.extend(
            work_in_each_store(
                cluster, "compact_on_spark", topics, lambda context: _compact(spark, context, force, progress),
                on_spark=True,
            )
        )  # fmt: skip
    except Exception:
        for report in reports:
            progress(str(report))
        raise
    return reports


def _compact(
    spark: "SparkSession", context: MaintenanceContext, force: bool, progress: Callable[[str], None]
) -> Iterator[Report]:
    passes: list[CompactionPass] = []
    under_way: dict[int, Compacting] = {}
    failed: list[str] = []
    failure = FirstFailure()
    for topic in compacted_topics(context, context.topic_names):
        under_way[topic.topic_id] = Compacting(context, topic)
        if CurrentRule.of(topic.config, topic.columns).by_sequence:
            under_way[topic.topic_id].say("table.current.order=sequence: left to `spark-log maintenance`")
            continue
        with failure.attempt(failed):
            for partition in candidates(context, topic, force=force):
                with failure.attempt(failed):  # its tail cannot be sealed, for example
                    due = find_due(context, topic, partition, force=force)
                    planned = None if due is None else plan_pass(context, due)
                    if planned is not None:
                        passes.append(planned)
    units = [unit for planned in passes for unit in planned.units]
    if units:
        size = sum(segment.bytes for unit in units for segment in unit.rewriting.inputs)
        records = sum(unit.record_count for unit in units)
        partitions, read, files = (
            count_of(count, what)
            for count, what in ((len(passes), "partition"), (records, "record"), (len(units), "unit"))
        )
        progress(f"due: {partitions}, {read}, {size:,} bytes, {files}")
        write_id, _ = context.writer.file_name()
        outcomes = _compact_units(spark, passes, write_id, context.cluster.log_dirs())
        written = sum(o.compacted is not None and o.compacted.written is not None for o in outcomes)
        progress(f"{count_of(written, 'file')} written")
        rest = iter(outcomes)
        for planned in passes:
            mine = [next(rest) for _ in planned.units]
            failed += [outcome.error for outcome in mine if outcome.error is not None]
            _swap(under_way[planned.topic.topic_id], planned, mine, write_id)
    yield from (report for compacting in under_way.values() if (report := compacting.report()) is not None)
    if failed:
        raise StorageUnavailableError(f"not all was compacted, {len(failed)} times: {failed[0]}")


def _swap(compacting: Compacting, planned: CompactionPass, outcomes: Sequence["_Outcome"], write_id: str) -> None:
    done = [(unit, each.compacted) for unit, each in zip(planned.units, outcomes, strict=True) if each.compacted]
    swapped = [
        compacting.swap(planned, unit, compacted, write_id) for unit, compacted in done
    ]  # each swap is useful by itself
    if not all(swapped):
        compacting.note_conflict(planned)
    elif len(done) == len(planned.units):
        compacting.complete(planned, [compacted for _, compacted in done])


@dataclass(frozen=True)
class _Outcome:
    """The outcome of a unit; `error` if the unit could not be read or written."""

    compacted: Compacted | None
    error: str | None = None


def _compact_units(
    spark: "SparkSession", passes: Sequence[CompactionPass], write_id: str, log_dirs: LogDirs
) -> list[_Outcome]:
    """Return the outcomes of all units, in order."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return _run(spark, passes, write_id, log_dirs)
    except (PySparkException, Py4JError) as error:
        # Spark's reader does not try another replica, and does not name the file that it could not read
        logger.warning("compaction: all segments are checked and repaired: %s", redact(str(error))[:500])
        bad = _repair(spark, passes, log_dirs)
        if not bad:
            return _run(spark, passes, write_id, log_dirs)
        rest = iter(_run(spark, [each for each in passes if each.key not in bad], write_id, log_dirs))
        return [
            _Outcome(None, bad[planned.key]) if planned.key in bad else next(rest)
            for planned in passes
            for _ in planned.units
        ]


def _run(spark: "SparkSession", passes: Sequence[CompactionPass], write_id: str, log_dirs: LogDirs) -> list[_Outcome]:
    units = [unit for planned in passes for unit in planned.units]
    if not units:
        return []
    task = _unit_task(units, write_id, log_dirs)
    rows = _last_codes(spark, passes, log_dirs).mapInArrow(task, "unit long, outcome binary").collect()
    told: dict[int, _Outcome] = {row.unit: pickle.loads(row.outcome) for row in rows}
    return [told[number] for number in range(len(units))]


def _last_codes(spark: "SparkSession", passes: Sequence[CompactionPass], log_dirs: LogDirs) -> "DataFrame":
    """Return column `code`: the code of the last record of each key, and _END at the end of each unit. All codes of a
    unit are in one task, in order.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    from spark_log.log.segments.segment_scan import scan_segments

    units = [unit for planned in passes for unit in planned.units]
    logs = [number for number, planned in enumerate(passes) for _ in planned.units]
    ends = spark.range(len(units)).select((F.shiftleft("id", 32) + F.lit(_END)).alias("code"))
    places = [(number, unit, piece) for number, unit in enumerate(units) for piece in unit.rewriting.slices]
    codes = ends
    if places:
        firsts = [(number << 32) + piece.base_offset - unit.rewriting.base_offset for number, unit, piece in places]
        facts = {
            "log": pa.array([logs[number] for number, _, _ in places], pa.int32()),
            "first": pa.array(firsts, pa.int64()),
        }
        pieces = [piece for _, _, piece in places]
        rows = scan_segments(spark, pieces, log_dirs, "offset_delta int, key binary", facts)
        # this includes records below the log start: they overwrite nothing above it, and the tasks do not read them
        code = F.max(F.col("first") + F.col("offset_delta")).alias("code")
        last = rows.where(F.col("key").isNotNull()).groupBy("log", "key").agg(code).select("code")
        codes = last.unionAll(ends)
    tasks = min(len(units), _TASKS_MAX)
    in_tasks = codes.repartitionById(tasks, (F.shiftright("code", 32) % tasks).cast("int"))
    return in_tasks.sortWithinPartitions("code")


def _unit_task(
    units: Sequence[Unit], write_id: str, log_dirs: LogDirs
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that compacts the units of a task from their codes. It runs on an executor."""

    def compact_units(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        for batch in batches:
            codes = batch.column(0).to_numpy()
            begin = 0
            for end in np.flatnonzero((codes & _END) == _END).tolist():
                unit = int(codes[end]) >> 32
                offsets = np.concatenate([*waiting, codes[begin:end]]) - (unit << 32)
                waiting, begin = [], end + 1
                outcome = _compact_unit(units[unit], offsets, write_id, log_dirs)
                yield pa.RecordBatch.from_pydict(
                    {"unit": pa.array([unit], pa.int64()), "outcome": [pickle.dumps(outcome)]}
                )
            waiting.append(codes[begin:])

    return compact_units


def _compact_unit(
    unit: Unit, deltas: np.ndarray[Any, np.dtype[np.int64]], write_id: str, log_dirs: LogDirs
) -> _Outcome:
    name = f"{write_id}-{uuid.uuid4().hex[:16]}.parquet"  # each attempt of a task uses its own name
    try:
        last_offsets = deltas + unit.rewriting.base_offset
        return _Outcome(compact_unit(unit, last_offsets, name, log_dirs, open_log_dir))
    except (SparkLogError, OSError) as error:  # one bad disk does not stop the other units
        return _Outcome(None, redact(f"{type(error).__name__}: {error}"))


def _repair(spark: "SparkSession", passes: Sequence[CompactionPass], log_dirs: LogDirs) -> dict[Key, str]:
    """Repair the bad replicas of each segment that has an intact one. Returns by partition the error of a segment that
    has none.
    """
    from spark_log.maintenance.spark_tasks import run_in_tasks

    pieces = [(planned.key, piece) for planned in passes for unit in planned.units for piece in unit.rewriting.slices]
    errors = run_in_tasks(spark, lambda item: _repair_slice(item[1], log_dirs), pieces, min(len(pieces), _TASKS_MAX))
    return {key: error for (key, _), error in zip(pieces, errors, strict=True) if error is not None}


def _repair_slice(piece: Slice, log_dirs: LogDirs) -> str | None:
    file = SegmentFile(segment_path(piece.folder, piece.partition, piece.name), piece.size, piece.checksum)
    whole: list[LogDir] = []
    bad: list[LogDir] = []
    errors: list[SparkLogError] = []
    for log_dir_id in piece.log_dir_ids:
        try:
            log_dir = open_log_dir(log_dirs[log_dir_id])
            (whole if is_whole(log_dir, file) else bad).append(log_dir)
        except BAD_REPLICA as error:
            errors.append(error)
    if not whole:
        errors += [CorruptRecordError(f"segment {each.location(file.path)} is not what was written") for each in bad]
        return redact(str(all_replicas_bad_error(piece, errors)))
    for each in bad:
        repair(each, whole[0], file)
    return None
