"""Reads the history of a cluster from its topic `__metrics`: series for charts, runs of tasks, Spark queries.

    throughput = read_series(cluster, Kind.CLUSTER, from_ms=now_ms - DAY_MS, to_ms=now_ms, step_ms=5 * 60_000)
    throughput.times_ms, throughput.values["rate"]            # lists of equal length; None: nothing was measured then
    lag = read_series(cluster, Kind.GROUP, "shop", topic="events", from_ms=..., to_ms=..., step_ms=60_000)
    failed = read_task_runs(cluster, failed=True, limit=20)   # newest first
    queries = read_queries(cluster, from_ms=now_ms - DAY_MS)  # the last report of each query, newest first

All times are milliseconds since 1970 by the store's clock. Without a history the results are empty. Records in
unavailable log dirs are missing. Errors of the metadata store are raised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_log.cluster.cluster import Cluster
from spark_log.facts.metrics.recorded_reads import DAY_MS as DAY_MS
from spark_log.facts.metrics.recorded_reads import HOUR_MS as HOUR_MS
from spark_log.facts.metrics.recorded_reads import read_newest, read_records
from spark_log.facts.metrics.recorded_topics import METRICS
from spark_log.facts.metrics.task_runs import TaskRun

_SPAN_GAP_MS = 4 * HOUR_MS

REFRESH_MS = HOUR_MS
"""An unchanged topic or group is recorded this often; in between, its last record holds."""


class Kind(IntEnum):
    """The subject of a record of `__metrics`; the number is its partition."""

    CLUSTER = 0
    TOPIC = 1
    GROUP = 2
    TASK = 3
    QUERY = 4


FIELDS: Mapping[Kind, Mapping[str, str]] = {
    Kind.CLUSTER: {
        "rate": "rate", "records": "last", "bytes": "last", "tail_bytes": "max", "delta_lag_s": "max",
        "offline": "max", "under_replicated": "max", "topics": "last", "partitions": "last", "brokers": "min",
        "open_transactions": "max", "lag_s": "max",
    },
    Kind.TOPIC: {
        "rate": "rate", "end_offset": "last", "records": "last", "bytes": "last", "tail_bytes": "max",
        "delta_lag_s": "max", "offline": "max", "under_replicated": "max",
    },
    Kind.GROUP: {"rate": "rate", "lag": "max", "lag_s": "max", "members": "last"},
    Kind.QUERY: {
        "lag": "max", "input_rate": "mean", "processed_rate": "mean", "batch_s": "max", "state_rows": "last",
        "state_bytes": "last",
    },
}  # fmt: skip
"""The fields of a series, each with the function that makes one value of the records of a step. `rate` is in records
appended (by a group: committed) per second, and exact for any step. `end_offset` is the sum over the partitions.
`delta_lag_s` and `lag_s` are the largest of the partitions. `batch_s` is the duration of a micro-batch. A group in one
topic has no `members`."""


@dataclass(frozen=True)
class Series:
    """A series: the start of each step, and by field a value for each step, None if nothing was measured."""

    times_ms: Sequence[int]
    values: Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class QueryReport:
    """The last report of a Spark query. `lag` is the number of records of spark_log topics that it has not read yet,
    None if it is unknown or the query reads no such topic. `state` is running, terminated or failed. `batch_s` is the
    duration of the last micro-batch, `progress_ms` the time of the last progress.
    """

    query_id: str
    time_ms: int
    query_name: str | None
    run_id: str
    state: str
    error: str | None
    batch_id: int | None
    lag: int | None
    input_records: int | None
    input_rate: float | None
    processed_rate: float | None
    batch_s: float | None
    state_rows: int | None
    state_bytes: int | None
    progress_ms: int | None


def read_series(
    cluster: Cluster,
    kind: Kind,
    name: str = "",
    *,
    from_ms: int,
    to_ms: int,
    step_ms: int,
    topic: str | None = None,
) -> Series:
    """Return the series of the cluster (without a name), of a topic, of a group (with `topic`, of the group in that
    topic), or of a Spark query by its id.

    The steps begin at multiples of `step_ms` and cover [from_ms, to_ms). An unchanged value holds until the next
    record; steps in which no coordinator measured have None.
    """
    assert kind in FIELDS and step_ms > 0, (kind, step_ms)
    first = from_ms // step_ms * step_ms
    times = range(first, to_ms, step_ms)
    methods = FIELDS[kind]
    done = "committed" if kind is Kind.GROUP else "appended"
    levels = {field: how for field, how in methods.items() if how != "rate"}
    filters: dict[str, str | None] = {"name": name, **({"topic": topic} if kind is Kind.GROUP else {})}
    since_ms = first if kind in (Kind.CLUSTER, Kind.QUERY) else first - REFRESH_MS
    records = read_records(cluster, METRICS, kind, ["name", "topic", done, *levels], since_ms, to_ms, filters)
    if not records.num_rows:
        return Series(list(times), {field: [None] * len(times) for field in methods})
    steps = _by_step(records, first, step_ms, levels | {done: "sum"})
    if kind is Kind.QUERY:
        return Series(list(times), {field: [steps[field].get(i) for i in range(len(times))] for field in levels})
    before = _by_step(records.filter(pc.less(records["time_ms"], first)), first, step_ms, dict.fromkeys(levels, "last"))
    intervals = read_records(cluster, METRICS, Kind.CLUSTER, ["interval_s"], first, to_ms, {})
    measured_s = _by_step(intervals, first, step_ms, {"interval_s": "sum"})["interval_s"]
    values = {field: _held(steps[field], before[field].get(-1), len(times), measured_s) for field in levels}
    rates = [steps[done].get(i, 0) / measured_s[i] if measured_s.get(i) else None for i in range(len(times))]
    return Series(list(times), {field: rates if how == "rate" else values[field] for field, how in methods.items()})


def latest_rates(cluster: Cluster) -> dict[str, float] | None:
    """Return the last measured records per second by topic, without topics that have not changed since the measurement
    before; None without a measurement.
    """
    interval_ms = cluster.store.settings.metrics_interval_ms
    if interval_ms < 0:
        return None
    since_ms = cluster.store.now().wall_ms - 5 * interval_ms // 2
    measured = read_records(cluster, METRICS, Kind.CLUSTER, ["rate"], since_ms, None, {})
    if not measured.num_rows:
        return None
    last_ms = measured["time_ms"][-1].as_py()
    found = read_records(cluster, METRICS, Kind.TOPIC, ["name", "rate"], last_ms, None, {})
    return dict(zip(found["name"].to_pylist(), found["rate"].to_pylist(), strict=True))


def read_task_runs(
    cluster: Cluster,
    *,
    task: str | None = None,
    failed: bool | None = None,
    from_ms: int | None = None,
    limit: int = 200,
) -> list[TaskRun]:
    """Return the newest runs of tasks that were recorded since `from_ms`, newest first.

    Runs that changed nothing, were quick and followed a success are not recorded (`facts.metrics.task_runs`).
    """
    filters: dict[str, str | None] = {} if task is None else {"name": task}
    if failed is not None:
        filters["outcome"] = "failed" if failed else "succeeded"
    names = ["name", "lease", "start_ms", "seconds", "outcome", "error", "notes"]
    rows = read_newest(cluster, METRICS, Kind.TASK, names, filters, from_ms, None, limit)
    runs = {  # a run that was written twice, after a lost answer of the store, counts once
        (row["name"], row["start_ms"]): TaskRun(
            row["name"], row["lease"], row["start_ms"], row["seconds"], row["error"], row["notes"] or ""
        )
        for row in rows
    }
    return sorted(runs.values(), key=lambda run: run.start_ms, reverse=True)


def read_queries(cluster: Cluster, *, from_ms: int) -> list[QueryReport]:
    """Return each Spark query's last report since `from_ms`, newest first. `read_series` takes its `query_id`."""
    own = [field for field in QueryReport.__dataclass_fields__ if field not in ("query_id", "time_ms")]
    names = read_records(cluster, METRICS, Kind.QUERY, ["name"], from_ms, None, {})
    last_ms = sorted(names.group_by("name").aggregate([("time_ms", "max")])["time_ms_max"].to_pylist())
    last: dict[str, dict[str, Any]] = {}
    for first, end in _spans(last_ms):  # the other columns are read only where last reports are
        records = read_records(cluster, METRICS, Kind.QUERY, ["name", *own], first, end + 1, {})
        numbered = records.append_column("row", pa.array(range(records.num_rows), pa.int64()))
        rows = records.take(numbered.group_by("name").aggregate([("row", "max")])["row_max"]).to_pylist()
        last |= {row["name"]: row for row in rows}
    found = [QueryReport(name, row["time_ms"], **{field: row[field] for field in own}) for name, row in last.items()]
    return sorted(found, key=lambda report: report.time_ms, reverse=True)


def _spans(times_ms: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and the last time of each run of these ordered times, whose gaps are at most _SPAN_GAP_MS."""
    spans: list[tuple[int, int]] = []
    for time_ms in times_ms:
        if spans and time_ms - spans[-1][1] <= _SPAN_GAP_MS:
            spans[-1] = (spans[-1][0], time_ms)
        else:
            spans.append((time_ms, time_ms))
    return spans


def _by_step(records: pa.Table, first_ms: int, step_ms: int, how: Mapping[str, str]) -> dict[str, dict[int, Any]]:
    """Return by field the aggregate of each step that has a value. Step -1 has the records before the first one."""
    since = pc.subtract(records["time_ms"], first_ms)
    steps = pc.if_else(pc.less(since, 0), -1, pc.divide(since, step_ms))
    grouped = records.append_column("step", steps).group_by("step", use_threads=False)
    found = grouped.aggregate(list(how.items()))
    at = found["step"].to_pylist()
    return {
        field: {
            i: value for i, value in zip(at, found[f"{field}_{name}"].to_pylist(), strict=True) if value is not None
        }
        for field, name in how.items()
    }


def _held(
    values: Mapping[int, float], before: float | None, count: int, measured_s: Mapping[int, float]
) -> list[float | None]:
    """Return a value for each step: its own, or the last one before it if there was a measurement."""
    found: list[float | None] = []
    last = before
    for i in range(count):
        last = values.get(i, last)
        found.append(last if i in values or measured_s.get(i) else None)
    return found
