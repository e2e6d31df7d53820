"""Reads the topics that the cluster itself writes: `__metrics` and `__audit`."""

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.errors import redact
from spark_log.facts.metrics.recorded_topics import RecordedTopic, find_recorded
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.columns.column_choice import chosen_fields
from spark_log.log.reader import LogReader, RangesToRead
from spark_log.log.records.schema import read_schema
from spark_log.log.segments.fetcher import BAD_REPLICA, Fetcher
from spark_log.log.segments.file_pruning import without_excluded
from spark_log.log.segments.slices import Condition, FieldFilter, TimestampBounds

logger = logging.getLogger(__name__)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

_WINDOWS_MS = (HOUR_MS, DAY_MS, 31 * DAY_MS, 400 * DAY_MS)


def read_newest(
    cluster: Cluster,
    recorded: RecordedTopic,
    partition: int,
    names: Sequence[str],
    filters: Mapping[str, str | None],
    from_ms: int | None,
    to_ms: int | None,
    limit: int,
) -> list[dict[str, Any]]:
    """Return the last `limit` records in [from_ms, to_ms), the newest first. Reads only as far back as needed."""
    end_ms = cluster.store.now().wall_ms + 1 if to_ms is None else to_ms
    records = pa.table({})
    for window_ms in _WINDOWS_MS:
        since_ms = max(end_ms - window_ms, from_ms or 0)
        records = read_records(cluster, recorded, partition, names, since_ms, end_ms, filters)
        if records.num_rows >= limit or since_ms <= (from_ms or 0):
            break
    rows: list[dict[str, Any]] = records.slice(max(0, records.num_rows - limit)).to_pylist()
    return rows[::-1]


def read_records(
    cluster: Cluster,
    recorded: RecordedTopic,
    partition: int,
    names: Sequence[str],
    from_ms: int,
    to_ms: int | None,
    filters: Mapping[str, str | None],
) -> pa.Table:
    """Return fields `names` of the records of a partition that were written in [from_ms, to_ms), in order, with
    `time_ms`.

    `filters` has the values that fields must have; None stands for null. Files and row groups that cannot have such
    records are not read. Records in files that cannot be read are left out.
    """
    types = _types(recorded)
    empty = pa.schema([("time_ms", pa.int64()), *((name, types[name]) for name in names)]).empty_table()
    topic = find_recorded(cluster, recorded)
    if topic is None or topic.columns is None or topic.columns.value is None:
        return empty
    existing = [name for name in dict.fromkeys([*names, *filters]) if name in topic.columns.value.fields.names]
    if not {*filters} <= {*existing}:
        return empty
    reader = LogReader(cluster)
    try:
        here = TopicPartition(topic.name, partition)
        limits = reader.positions(topic).get(here)
        times = TimestampBounds(from_ms, to_ms)
        fields = [
            FieldFilter(
                ("record", name),
                Condition.IS_NULL if value is None else Condition.IN,
                () if value is None else (value,),
            )
            for name, value in filters.items()
        ]
        if limits is None or limits.log_start_offset >= limits.high_watermark:
            return empty

        def wanted(connection: sa.Connection) -> RangesToRead:
            return RangesToRead({topic.name: topic}, {here: OffsetRange(*limits)})

        plan = reader.plan_in_snapshot(wanted, times)
        slices = cluster.store.read(
            lambda connection: without_excluded(connection, {topic.name: topic}, plan.slices, fields)
        )
        typed = chosen_fields(topic.columns.fields, [f"record.{name}" for name in existing])
        schema = read_schema(columns=["timestamp", "record"], typed=typed)
        fetcher = Fetcher(plan.log_dirs)
        batches: list[pa.RecordBatch] = []
        for piece in slices:
            try:
                batches += list(fetcher.read([piece], schema, times, fields))
            except BAD_REPLICA as error:  # while a log dir is offline, a chart with a gap is better than none
                _log_once(f"{topic.name}-{partition}: records are missing: {redact(str(error))}")
        table = pa.Table.from_batches(batches, schema)
    finally:
        reader.close()
    record = table["record"].combine_chunks()
    columns = {"time_ms": pc.floor(pc.divide(table["timestamp"].cast(pa.int64()), 1000)).cast(pa.int64())}
    columns |= {
        name: pc.struct_field(record, name) if name in existing else pa.nulls(table.num_rows, types[name])
        for name in dict.fromkeys([*names, *filters])
    }
    records = pa.table(columns)
    keep = pc.greater_equal(records["time_ms"], from_ms)
    if to_ms is not None:
        keep = pc.and_(keep, pc.less(records["time_ms"], to_ms))
    for name, value in filters.items():
        keep = pc.and_(keep, pc.is_null(records[name]) if value is None else pc.equal(records[name], value))
    return records.filter(keep)


def _types(recorded: RecordedTopic) -> dict[str, pa.DataType]:
    kinds = {"STRING": pa.string(), "BIGINT": pa.int64(), "DOUBLE": pa.float64()}
    pairs = (field.split() for field in recorded.fields.split(","))
    return {name: kinds[kind] for name, kind in pairs}


@functools.lru_cache(maxsize=256)
def _log_once(text: str) -> None:
    logger.warning("%s", text)
