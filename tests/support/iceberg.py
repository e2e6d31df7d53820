"""Compares a topic's Iceberg table, as pyiceberg and DuckDB read it, with the log."""

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic
from spark_log.ids import OffsetRange
from spark_log.maintenance.client_log import ClientLog
from spark_log.tables.publication import publish
from tests.support.current_state import duckdb_connection
from tests.support.python_process import run_process
from tests.support.topics import append

CONFIGS = {"inline_max_bytes": "0", "delta_max_lag_ms": "-1", "retention_ms": "-1", "table_formats": "delta,iceberg"}
"""Each append writes a file."""

CRASH = """
import os, sys
os.environ["SPARK_LOG_FAILPOINT"] = sys.argv[2]
from spark_log import Cluster
from spark_log.cluster.topics import find_topics
from spark_log.tables.publication import publish
with Cluster.open(sys.argv[1]) as cluster:
    [topic] = cluster.store.read(find_topics).values()
    publish(cluster, topic)
"""
"""A publisher that is killed at a failpoint. Its arguments: the address of the cluster, and the point."""

Values = dict[int, list[str]]
"""The values of each partition in the order of their offsets."""


def folder_of(cluster: Cluster, topic: Topic) -> tuple[LogDir, str]:
    (info,) = cluster.log_dirs().values()
    return LogDir(info.uri), topic.folder


def metadata_path(cluster: Cluster, topic: Topic) -> Path:
    log_dir, folder = folder_of(cluster, topic)
    version = Path(log_dir.location(f"{folder}/metadata/version-hint.text")).read_text()
    return Path(log_dir.location(f"{folder}/metadata/v{version}.metadata.json"))


def snapshots_of(cluster: Cluster, topic: Topic) -> list[dict[str, Any]]:
    return list(json.loads(metadata_path(cluster, topic).read_text())["snapshots"])


def by_pyiceberg(cluster: Cluster, topic: Topic) -> Values:
    return values_of(StaticTable.from_metadata(str(metadata_path(cluster, topic))).scan().to_arrow())


def by_duckdb(cluster: Cluster, topic: Topic) -> Values:
    log_dir, folder = folder_of(cluster, topic)
    query = f"SELECT * FROM iceberg_scan('{log_dir.location(folder)}')"
    return values_of(duckdb_connection().execute(query).to_arrow_table())


def values_of(table: pa.Table) -> Values:
    rows = sorted(
        (row["partition"], row["base_offset"] + row["offset_delta"], row["value"]) for row in table.to_pylist()
    )
    assert len({row[:2] for row in rows}) == len(rows), "an offset is there twice"
    values: Values = {}
    for partition, _, value in rows:
        values.setdefault(partition, []).append(value.decode())
    return values


def values_in(cluster: Cluster, topic: Topic) -> Values:
    """The values of the log, of each partition that has some."""
    log = ClientLog(cluster)
    try:
        ranges = {each: OffsetRange(*limits) for each, limits in log.positions(topic).items()}
        values: Values = {}
        for batch in log.read(ranges):
            for row in batch.to_pylist():
                values.setdefault(row["partition"], []).append(row["value"].decode())
        return values
    finally:
        log.close()


def check(cluster: Cluster, topic: Topic, operations: list[str] | None = None) -> None:
    """The readers see what the log has. `operations` are those of the last commit's snapshots."""
    publish(cluster, topic)
    in_log = values_in(cluster, topic)
    assert by_pyiceberg(cluster, topic) == in_log
    assert by_duckdb(cluster, topic) == in_log
    snapshots = snapshots_of(cluster, topic)
    last = snapshots[-1]["summary"]["spark-log.transaction-version"]
    done = [each["summary"] for each in snapshots if each["summary"].get("spark-log.transaction-version") == last]
    if operations is not None:
        assert [each["operation"] for each in done] == operations
    assert int(done[-1]["total-records"]) == sum(map(len, in_log.values()))


def publish_killed_at(
    point: str, cluster_address: str, log: ClientLog, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Append "a", which this process does not publish, and kill another one that publishes it at the failpoint."""
    with monkeypatch.context() as patch:
        patch.setattr("spark_log.tables.publication.publish_all", lambda *_, **__: {})
        patch.setattr("spark_log.maintenance.rewrite.table_loop.try_publish", lambda *_, **__: True)
        append(log, topic, "a")
    killed = run_process("-c", CRASH, cluster_address, point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
