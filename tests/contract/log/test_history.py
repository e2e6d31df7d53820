"""The history in `__metrics`: what it says happened is what happened, each thing once."""

import json
import subprocess
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from kafka import OffsetAndMetadata

from spark_log import clock
from spark_log.cluster.lease import unfenced
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.topics import find_topic
from spark_log.config.values import DAY_MS
from spark_log.errors import (
    InvalidConfigurationError,
    MetadataStoreUnavailableError,
    NotCoordinatorError,
    PolicyViolationError,
)
from spark_log.facts.metrics.history import HOUR_MS, Kind, read_queries, read_series, read_task_runs
from spark_log.facts.metrics.recorded_reads import read_records
from spark_log.facts.metrics.recorded_topics import METRICS, Recorded
from spark_log.facts.metrics.task_runs import TaskRun, TaskRunBuffer
from spark_log.ids import TopicPartition
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.log.segments.fetcher import Fetcher
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.coordinator.recorder import Recorder, record_task_runs
from spark_log.maintenance.recorded_appends import append_records
from spark_log.maintenance.task_list import run_tasks
from spark_log.replication.controller.topic_operations import alter_configs, create_topic
from tests.support.group_members import commit
from tests.support.python_process import PythonProcess
from tests.support.records import table
from tests.support.replicas import take_away
from tests.support.topics import append_to
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.on_sqlite

MINUTE_MS = 60_000


def append(cluster, topic, count, partition=0):
    append_to(cluster, topic, *map(str, range(count)), partition=partition, timestamp_ms=cluster.store.now().wall_ms)


def total(cluster, kind, name="", **more):
    """The series in one step that covers all."""
    found = read_series(cluster, kind, name, from_ms=0, to_ms=10**14, step_ms=10**14, **more)
    return {field: values[0] for field, values in found.values.items()}


def metrics_topic(cluster):
    return cluster.store.read(lambda connection: find_topic(connection, "__metrics"))


def measured_s(cluster):
    return sum(read_records(cluster, METRICS, Kind.CLUSTER, ["interval_s"], 0, None, {})["interval_s"].to_pylist())


def test_the_history_has_throughput_and_lag(cluster, cluster_address):
    topic = create_topic(cluster, "t", 2)
    append(cluster, topic, 3)
    recorder = Recorder()
    assert set(total(cluster, Kind.TOPIC, "t").values()) == {None}  # nothing is recorded yet
    recorder.record(cluster, unfenced, 1)
    append(cluster, topic, 5, partition=1)
    commit(cluster_address, "g", {TopicPartition("t", 1): OffsetAndMetadata(1, "", -1)})
    recorder.record(cluster, unfenced, 1)
    commit(cluster_address, "g", {TopicPartition("t", 1): OffsetAndMetadata(4, "", -1)})
    recorder.record(cluster, unfenced, 1)

    of_topic, of_cluster = total(cluster, Kind.TOPIC, "t"), total(cluster, Kind.CLUSTER)
    for found in (of_topic, of_cluster):
        assert found["rate"] * measured_s(cluster) == pytest.approx(5)
        assert (found["records"], found["offline"], found["bytes"] > 0) == (8, 0, True)
    assert (of_topic["end_offset"], of_cluster["topics"], of_cluster["partitions"]) == (8, 1, 2)
    for found in (total(cluster, Kind.GROUP, "g"), total(cluster, Kind.GROUP, "g", topic="t")):
        assert (found["lag"], found["rate"] * measured_s(cluster)) == (4, pytest.approx(3))
    assert set(total(cluster, Kind.TOPIC, "other").values()) == {None}


@pytest.mark.delta
def test_an_idle_cluster_writes_one_record_an_interval(cluster):
    append(cluster, create_topic(cluster, "t"), 3)
    recorder = Recorder()
    for _ in range(3):  # a snapshot, all topics, their rates of 0
        recorder.record(cluster, unfenced, 1)
    before = records_of_partitions(cluster)
    recorder.record(cluster, unfenced, 1)
    after = records_of_partitions(cluster)
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 0, 0, 0, 0]
    now_ms = cluster.store.now().wall_ms
    found = read_series(cluster, Kind.TOPIC, "t", from_ms=now_ms - MINUTE_MS, to_ms=now_ms + 1, step_ms=MINUTE_MS)
    assert [value for value in found.values["records"] if value is not None][-1] == 3


def records_of_partitions(cluster):
    log = ClientLog(cluster)
    found = log.positions(metrics_topic(cluster))
    log.close()
    return [position.high_watermark for _, position in sorted(found.items())]


def test_terms_of_coordinators_count_each_record_once(cluster):
    topic = create_topic(cluster, "t")
    first, second = Recorder(), Recorder()
    first.record(cluster, unfenced, 1)
    append(cluster, topic, 5)
    second.record(cluster, unfenced, 2)
    append(cluster, topic, 7)
    second.record(cluster, unfenced, 2)
    first._written = dict(second._written)
    first.record(cluster, unfenced, 3)  # it became the coordinator again: what happened meanwhile is not its own
    assert first._written == {}, "the values that it wrote in its last term may not be the last ones"
    append(cluster, topic, 11)
    first.record(cluster, unfenced, 3)
    assert total(cluster, Kind.TOPIC, "t")["rate"] * measured_s(cluster) == pytest.approx(7 + 11)

    def ended(_connection):
        raise NotCoordinatorError("the term has ended")

    before = records_of_partitions(cluster)
    with pytest.raises(NotCoordinatorError):
        first.record(cluster, ended, 3)
    assert records_of_partitions(cluster) == before


def test_killed_coordinators_count_nothing_twice(cluster, cluster_address):
    alter_settings(cluster, {"metrics.interval.ms": "50", "controller.lease.ms": "300"})
    topic = create_topic(cluster, "t")
    command = ["-m", "spark_log", "coordinator", "--cluster", cluster_address]
    appended, seen = 0, 0
    for _ in range(3):
        began_ms = cluster.store.read(cluster.store.clock).wall_ms
        process = PythonProcess(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline_s = clock.monotonic_s() + LIMIT_S
            while len(intervals(cluster)) < seen + 5:
                append(cluster, topic, 2)
                appended += 2
                assert clock.monotonic_s() < deadline_s
        finally:
            process.kill()
            process.wait()
        found = intervals(cluster)
        measured_s = accumulate(interval["interval_s"] for interval in found[seen:])
        for interval, total_s in zip(found[seen:], measured_s, strict=True):
            # the time of a record is that of its append, any time after the last snapshot of the intervals
            assert 1000 * total_s <= interval["time_ms"] - began_ms
        seen = len(found)
    assert 0 < sum(interval["appended"] for interval in found) <= appended


def intervals(cluster):
    return read_records(cluster, METRICS, Kind.CLUSTER, ["interval_s", "appended"], 0, None, {}).to_pylist()


@pytest.mark.delta
def test_metrics_are_files_and_a_delta_table_that_retention_shortens(cluster):
    append(cluster, create_topic(cluster, "t"), 3)
    recorder = Recorder()
    recorder.record(cluster, unfenced, 1)
    recorder.record(cluster, unfenced, 1)
    topic = metrics_topic(cluster)
    assert (topic.config.retention_ms, topic.replication_factor) == (30 * DAY_MS, 1)
    list(run_tasks(cluster, ["seal"], now=True))
    assert total(cluster, Kind.CLUSTER)["records"] == 3  # from the files
    (info,) = cluster.log_dirs().values()
    records = DeltaTable(cluster.log_dir(info).location(topic.folder)).to_pyarrow_table()["record"]
    assert {row["kind"]: row["records"] for row in records.to_pylist()} == {"cluster": 3, "topic": 3}

    alter_configs(cluster, "__metrics", {"retention.ms": "1"})
    run_tasks_until_empty(cluster)
    assert total(cluster, Kind.CLUSTER)["records"] is None
    with pytest.raises(PolicyViolationError, match="__metrics"):
        ClientLog(cluster).append(topic, [Records(0, table("{}"))])


def run_tasks_until_empty(cluster):
    clock.sleep_s(0.01)  # beyond retention.ms
    list(run_tasks(cluster, ["retention"]))


def test_runs_of_tasks_are_kept_if_they_failed_or_changed_something(cluster):
    runs = TaskRunBuffer()
    quiet = TaskRun("seal", "coordinator", 1, 0.1)
    merged = TaskRun("merge", "coordinator", 2, 0.1, None, "merge t: 3 files")
    failed = TaskRun("seal", "coordinator", 3, 0.1, "StorageUnavailableError: no disk")
    good_again = TaskRun("seal", "coordinator", 5, 0.1)
    for run in (quiet, merged, failed, replace(failed, start_ms=4), good_again, replace(good_again, start_ms=6)):
        runs.add(run)

    def away(_connection):
        raise MetadataStoreUnavailableError("the store is away")

    with pytest.raises(MetadataStoreUnavailableError):
        record_task_runs(cluster, runs, away)
    record_task_runs(cluster, runs, unfenced)
    assert read_task_runs(cluster) == [good_again, failed, merged]
    assert read_task_runs(cluster, limit=1) == [good_again]
    assert read_task_runs(cluster, failed=True) == read_task_runs(cluster, task="seal", limit=2)[1:] == [failed]


def test_a_coordinator_records_by_itself(cluster):
    alter_settings(cluster, {"metrics.interval.ms": "50", "table.loop.poll.ms": "50"})
    append(cluster, create_topic(cluster, "t"), 3)
    with Coordinator(cluster):
        wait_until(lambda: total(cluster, Kind.TOPIC, "t")["records"] == 3)
    alter_settings(cluster, {"metrics.interval.ms": "-1"})
    with pytest.raises(InvalidConfigurationError, match=r"table\.loop\.poll\.ms"):
        alter_settings(cluster, {"table.loop.poll.ms": "-1"})


def test_a_lost_broker_does_not_stop_the_history(three_brokers):
    cluster = three_brokers
    recorder = Recorder()
    recorder.record(cluster, unfenced, 1)
    recorder.record(cluster, unfenced, 1)
    assert metrics_topic(cluster).replication_factor == 3
    take_away(cluster, 1)
    before = records_of_partitions(cluster)
    recorder.record(cluster, unfenced, 1)
    assert records_of_partitions(cluster)[0] == before[0] + 1


def test_a_history_whose_log_dir_is_lost_is_read_as_far_as_it_goes(cluster, tmp_path):
    append(cluster, create_topic(cluster, "t"), 3)
    recorder = Recorder()
    recorder.record(cluster, unfenced, 1)
    recorder.record(cluster, unfenced, 1)
    list(run_tasks(cluster, ["seal"], now=True))
    assert total(cluster, Kind.CLUSTER)["records"] == 3
    (info,) = cluster.log_dirs().values()
    folder = Path(unquote(urlsplit(info.uri).path))
    folder.rename(folder.with_name("away"))
    assert total(cluster, Kind.CLUSTER)["records"] is None
    assert read_task_runs(cluster) == read_queries(cluster, from_ms=0) == []
    recorder.record(cluster, unfenced, 1)  # small records need no log dir
    assert total(cluster, Kind.CLUSTER)["records"] == 3


def test_a_series_decodes_each_record_of_its_time_once(cluster, monkeypatch):
    """Five hours with 10 topics active in each minute, sealed hour by hour, of which the last one is asked for."""
    first_ms = (cluster.store.now().wall_ms // HOUR_MS - 5) * HOUR_MS
    append_records(
        cluster, METRICS, [Recorded(int(Kind.CLUSTER), "", {"kind": "cluster", "name": "", "interval_s": 60})]
    )
    log = ClientLog(cluster, internal=True)
    topic = metrics_topic(cluster)
    for hour in range(5):
        rows = [
            {"kind": "topic", "name": f"topic-{i}", "appended": 60, "rate": 1.0, "records": i, "bytes": 1,
             "tail_bytes": 0, "delta_lag_s": 0.0, "offline": 0, "under_replicated": 0, "end_offset": i}
            for _ in range(60) for i in range(10)
        ]  # fmt: skip
        times = [first_ms + hour * HOUR_MS + minute * MINUTE_MS for minute in range(60)]
        of_topics = json_table(rows, [time_ms for time_ms in times for _ in range(10)])
        of_cluster = json_table([{"kind": "cluster", "name": "", "interval_s": 60.0, "appended": 600}] * 60, times)
        log.append(topic, [Records(0, of_cluster), Records(1, of_topics)])
        log.seal(topic, [0, 1])
    log.close()
    decoded, read = [], Fetcher.read

    def counted(*arguments):
        for batch in read(*arguments):
            decoded.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(Fetcher, "read", counted)
    from_ms = first_ms + 4 * HOUR_MS
    found = read_series(cluster, Kind.TOPIC, "topic-7", from_ms=from_ms, to_ms=from_ms + HOUR_MS, step_ms=5 * MINUTE_MS)
    assert found.values["rate"] == [1.0] * 12
    assert decoded == [600, 600, 60], "records of the topics also of the hour before, which an unchanged topic has"


def test_the_last_report_of_each_query_is_read_newest_first(cluster):
    third = {"name": "third", "run_id": "r", "state": "running"}
    append_records(cluster, METRICS, [Recorded(int(Kind.QUERY), "third", third)])
    now_ms = cluster.store.now().wall_ms
    reports = [("first", 20), ("second", 20), ("first", 10), ("second", 9.9)]  # hours ago
    rows = [{"name": name, "run_id": "r", "state": "running", "batch_id": i} for i, (name, _) in enumerate(reports)]
    log = ClientLog(cluster, internal=True)
    times = [now_ms - int(hours * HOUR_MS) for _, hours in reports]
    log.append(metrics_topic(cluster), [Records(int(Kind.QUERY), json_table(rows, times))])
    log.close()
    found = read_queries(cluster, from_ms=now_ms - DAY_MS)
    assert [(report.query_id, report.batch_id) for report in found] == [("third", None), ("second", 3), ("first", 2)]
    assert read_queries(cluster, from_ms=now_ms + DAY_MS) == []


def json_table(rows, times_ms):
    times = pa.array([time_ms * 1000 for time_ms in times_ms]).cast(RECORD_SCHEMA.field("timestamp").type)
    values = pa.array([json.dumps(row).encode() for row in rows])
    return pa.table([pa.nulls(len(rows)), values, pa.nulls(len(rows)), times], names=RECORD_SCHEMA.names).cast(
        RECORD_SCHEMA
    )
