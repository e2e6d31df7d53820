"""Debezium follows a table of PostgreSQL through a gateway: the table of the current state is the table of the source.

A worker of Kafka Connect with Debezium's connector snapshots the table, streams its changes, is killed while the source
changes, and streams on. After each step the Delta table has the rows of the source, and equals the log.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from scripts.conformance.connect_worker import create_connector, rest, until, worker
from scripts.conformance.results import Result
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.log.bad_record_listing import bad_rows
from spark_log.log.reader import LogReader
from spark_log.maintenance.task_list import run_tasks
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.verification import verify
from tests.support.kafka_programs import debezium_class_path
from tests.support.postgres import USER, PostgresServer
from tests.support.server_processes import GatewayProcess, free_port
from tests.support.table_checks import location_of

_TOPIC = "bank.public.account"
_CONFIGS = {
    "cleanup.policy": "compact",
    "value.format": "json",
    "value.schema": "id BIGINT, owner STRING, balance DECIMAL(12, 2), rate DOUBLE, active BOOLEAN, since DATE,"
    " changed TIMESTAMP",
    "value.envelope": "debezium",
    "table.current": "delta",
    "table.current.order": "sequence",
}
_TABLE = """CREATE TABLE account (id bigint PRIMARY KEY, owner text, balance numeric(12, 2) NOT NULL,
    rate double precision, active boolean NOT NULL, since date, changed timestamptz NOT NULL DEFAULT now())"""
_ROWS = """INSERT INTO account SELECT n, nullif('owner ' || n %% 7, 'owner 3'), n * 1.25, n / 7.0, n %% 2 = 0,
    date '2026-01-01' + n::int FROM generate_series(%s::int, %s) AS n"""
_CHANGES = (
    (_ROWS, (1001, 1200)),
    ("UPDATE account SET balance = balance - 0.01, changed = now() WHERE id %% 3 = 0", ()),
    ("DELETE FROM account WHERE id %% 10 = 9", ()),
    ("UPDATE account SET id = id + 5000 WHERE id %% 100 = 50", ()),
)
_LATER_CHANGES = (
    ("DELETE FROM account WHERE id %% 4 = 1", ()),
    (_ROWS, (9001, 9100)),
    ("UPDATE account SET owner = 'Ünïcödé \U0001f980' WHERE id %% 5 = 0", ()),
)
_Rows = list[tuple[Any, ...]]


def debezium(cache: Path) -> list[Result]:
    """Each step: "passed" if the table of the current state is that of the source."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=cache)))
        server = PostgresServer()
        stack.callback(server.remove)
        server.start(wal_level="logical")
        stack.callback(server.kill)
        cluster = stack.enter_context(Cluster.init(f"{folder}/cluster"))
        topic = create_topic(cluster, _TOPIC, 4, configs=_CONFIGS)
        assert topic is not None
        gateway = stack.enter_context(GatewayProcess(folder, f"{folder}/cluster"))
        source = stack.enter_context(psycopg.connect(f"{server.address} dbname=postgres", autocommit=True))
        return list(_steps(cluster, topic, gateway.address, source, server.port, folder))


def _steps(
    cluster: Cluster, topic: Topic, address: str, source: psycopg.Connection, port: int, folder: Path
) -> Iterator[Result]:
    source.execute(_TABLE)
    source.execute(_ROWS, (1, 1000))
    connector = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "tasks.max": "1",
        "plugin.name": "pgoutput", "database.hostname": "127.0.0.1", "database.port": str(port),
        "database.user": USER, "database.password": "unused", "database.dbname": "postgres", "topic.prefix": "bank",
        "table.include.list": "public.account", "publication.autocreate.mode": "filtered",
        "decimal.handling.mode": "string", "time.precision.mode": "isostring",
    }  # fmt: skip
    converters = {
        f"{part}_converter{more}": value
        for part in ("key", "value")
        for more, value in (("", "org.apache.kafka.connect.json.JsonConverter"), ("_schemas_enable", "false"))
    }
    rest_port = free_port()
    with worker(address, folder, rest_port, plugins=debezium_class_path(), **converters) as process:
        until(lambda: rest(rest_port, "/connectors") == [])
        create_connector(rest_port, "bank", connector)
        yield _compare("a snapshot is the table", cluster, topic, source)
        _change(source, _CHANGES)
        yield _compare("inserts, updates, deletes and changed keys", cluster, topic, source)
        process.kill()
    _change(source, _LATER_CHANGES)
    with worker(address, folder, rest_port, plugins=debezium_class_path(), **converters):
        yield _compare("changes while the worker was killed", cluster, topic, source)
    list(run_tasks(cluster, ["seal", "merge", "compact", "delta"], now=True))
    yield _compare("compacted", cluster, topic, source)
    equal = all(report.difference is None for report in verify(cluster, topic))
    reader = LogReader(cluster)
    bad = sum(1 for _ in bad_rows(reader, reader.find_topic(topic.name)))
    yield Result("Debezium", "the table equals the log, without bad records", _outcome(equal and bad == 0))


def _change(source: psycopg.Connection, changes: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    for statement, values in changes:
        source.execute(statement, values)


def _compare(step: str, cluster: Cluster, topic: Topic, source: psycopg.Connection) -> Result:
    columns = "id, owner, balance, rate, active, since, changed"
    expected = source.execute(f"SELECT {columns} FROM account ORDER BY id").fetchall()
    expected = [(*row[:-1], row[-1].astimezone(UTC)) for row in expected]

    def same() -> bool:
        list(run_tasks(cluster, ["seal"], now=True))
        return _rows(cluster, topic, columns) == expected

    try:
        until(same)
    except TimeoutError:
        return Result("Debezium", step, "failed")
    return Result("Debezium", step, "passed")


def _rows(cluster: Cluster, topic: Topic, columns: str) -> _Rows:
    fields = ", ".join(f"record['{name}'] AS {name}" for name in columns.split(", "))
    location = location_of(cluster, topic)
    if not DeltaTable.is_deltatable(location):
        return []
    query = QueryBuilder().register("t", DeltaTable(location))
    found = query.execute(f"SELECT {fields} FROM t ORDER BY record['id']")
    return [tuple(row.values()) for row in pa.RecordBatchReader.from_stream(found).read_all().to_pylist()]


def _outcome(holds: bool) -> str:
    return "passed" if holds else "failed"
