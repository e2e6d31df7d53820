"""A topic's Iceberg table, as pyiceberg, DuckDB and Spark read it, compared with the log; and a REST catalog.

`IcebergSpark` is Spark with Iceberg's runtime in the environment of `make test-spark41`. `RestCatalog` is a server over
pyiceberg's SQL catalog, and can fail as real ones do.
"""

import json
import math
import os
import pickle
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, CommitTableResponse, StaticTable, Table

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic
from spark_log.log.records.schema import read_schema
from spark_log.maintenance.client_log import ClientLog
from spark_log.tables.publication import delta_tables, publish
from tests.support import iceberg_spark_process
from tests.support.python_process import REPOSITORY, run_process
from tests.support.records import read_rows, topic_rows
from tests.support.server_processes import running_server
from tests.support.table_checks import duckdb_connection
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
    values: Values = {}
    for row in topic_rows(cluster, topic.name):
        values.setdefault(row["partition"], []).append(row["value"].decode())
    return values


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


ENVIRONMENT = REPOSITORY / ".venv41"
Rows = list[dict[str, Any]]


class SparkError(Exception):
    """An error in Spark, with its text."""


class IcebergSpark:
    """The session in the other process. `folder` is above the folders of all tables."""

    def __init__(self, folder: Path) -> None:
        if not (ENVIRONMENT / ".installed").exists():
            raise AssertionError(f"{ENVIRONMENT}, which these tests need, is missing: `make test-spark41` makes it")
        self._folder, self._messages = folder, folder / "iceberg-spark.log"
        python = str(ENVIRONMENT / "bin" / "python")
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
        environment |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "TZ": "UTC"}
        environment["SPARK_SUBMIT_OPTS"] = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        command = [python, "-P", iceberg_spark_process.__file__, str(folder)]
        with self._messages.open("wb") as messages:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages
            )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def sql(self, text: str) -> Rows:
        """The rows of a statement, in which tables have the names of `table`."""
        rows: Rows = self._ask("sql", text)
        return rows

    def table(self, location: str) -> str:
        """The name of a table in SQL."""
        return "log." + ".".join(f"`{part}`" for part in Path(location).relative_to(self._folder).parts)

    def rows(self, location: str, where: str = "true", **options: object) -> Rows:
        return self.scan(location, where, **options)[0]

    def scan(self, location: str, where: str, **options: object) -> tuple[Rows, int]:
        """The rows of a table, ordered, and the number of files that Spark has read. Options have `_` for `-`."""
        rows, files = self._ask("scan", location, where, _named(options))
        return ordered(rows), files

    def stream(self, location: str, checkpoint: Path, **options: object) -> Rows:
        """The rows that are new to a stream from the table's beginning, which continues at its checkpoint."""
        return ordered(self._ask("stream", location, str(checkpoint), _named(options)))

    def _ask(self, name: str, *arguments: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump((name, arguments), self._process.stdin)
            self._process.stdin.flush()
            done, answer = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError):
            raise AssertionError(f"Spark has ended: {self._messages.read_text()[-4000:]}") from None
        if not done:
            raise SparkError(answer)
        return answer


def rows_of(log: ClientLog, topic: Topic) -> Rows:
    """The records of the log as the table's rows, with typed columns, headers and `offset`."""
    typed = None if topic.columns is None else topic.columns.fields
    names = ["partition", "offset", "timestamp", "key", "value", "headers", *(() if typed is None else typed.names)]
    schema = read_schema(include_headers=True, columns=names, typed=typed)
    return ordered(read_rows(log, topic, schema))


def assert_table_is_the_log(spark: IcebergSpark, cluster: Cluster, log: ClientLog, topic: Topic) -> Rows:
    """Publish the topic, all of whose records are in files with all typed columns. Spark reads the log's records, which
    are returned.
    """
    publish(cluster, topic)
    [location] = delta_tables(cluster, topic).values()
    rows = rows_of(log, topic)
    assert spark.rows(location) == rows
    return rows


def ordered(rows: Sequence[dict[str, Any]]) -> Rows:
    """Rows by partition and offset, in values that can be compared."""
    found: Rows = [_plain(row) for row in rows]
    for row in found:
        if "offset" not in row:
            row["offset"] = row.pop("base_offset") + row.pop("offset_delta")
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()} or []
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):  # a map of Arrow, which is [] if it is empty
            return {name: _plain(each) for name, each in value}
        return [_plain(each) for each in value]
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _named(options: dict[str, object]) -> dict[str, str]:
    return {name.replace("_", "-"): str(value).lower() for name, value in options.items()}


_STATUS = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
}
_PATH = re.compile(r"/v1/(config|namespaces)(?:/([^/?]+))?(?:/(tables|register))?(?:/([^/?]+))?(?:\?.*)?")


class RestCatalog:
    """The server. `faults` has functions for the next commits: each is called with the commit, and answers a status in
    place of its answer, or None.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        uri = f"sqlite:///{folder}/catalog.db"
        self.catalog = SqlCatalog("server", uri=uri, warehouse=f"file://{folder}/warehouse")
        self.faults: list[Callable[[Callable[[], Any]], int | None]] = []
        self.commits = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.uri = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator["RestCatalog"]:
        with running_server(self._server):
            yield self

    @contextmanager
    def silent(self) -> Iterator[None]:
        """It accepts requests and answers none."""
        with self._lock:
            yield

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        match = _PATH.fullmatch(path)
        assert match is not None, path
        what, namespace, inside, name = match.groups()
        levels = tuple(unquote(namespace).split("\x1f")) if namespace else ()
        if what == "config":
            return 200, {"defaults": {}, "overrides": {}}
        if inside is None:
            if method == "POST":
                self.catalog.create_namespace(tuple(body["namespace"]))
                return 200, {"namespace": body["namespace"], "properties": {}}
            return 200, {"namespace": levels, "properties": self.catalog.load_namespace_properties(levels)}
        if inside == "register":
            return 200, _loaded(self.catalog.register_table((*levels, body["name"]), body["metadata-location"]))
        assert name is not None
        identifier = (*levels, unquote(name))
        if method == "DELETE":
            self.catalog.drop_table(identifier)
            return 204, None
        if method == "GET":
            return 200, _loaded(self.catalog.load_table(identifier))
        self.commits += 1

        def commit() -> CommitTableResponse:
            request = CommitTableRequest.model_validate({**body, "identifier": {"namespace": levels, "name": name}})
            return self.catalog.commit_table(self.catalog.load_table(identifier), request.requirements, request.updates)

        status = self.faults.pop(0)(commit) if self.faults else None
        if status is not None:
            return status, _error(status, "a fault of the test")
        return 200, json.loads(commit().model_dump_json())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                try:
                    with outer._lock:
                        status, content = outer.answer(self.command, self.path, body)
                except tuple(_STATUS) as error:
                    status = _STATUS[type(error)]
                    content = _error(status, str(error), type(error).__name__)
                data = b"" if content is None else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the names that http.server calls

            def log_message(self, *_: Any) -> None:
                """The tests print nothing."""

        return Handler


def _loaded(table: Table) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }


def _error(status: int, message: str, kind: str = "Fault") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind.replace("Error", "Exception"), "code": status}}


NAMESPACE = ("lake", "logs")


def loaded(topic: str = "t") -> Any:
    return load_catalog("lake").load_table((*NAMESPACE, topic))


def check_catalog(cluster: Cluster, topic: Topic, operations: Sequence[str] | None = None) -> None:
    """Publish the topic: its table in the catalog has the values of the log, by these operations of the last commit."""
    publish(cluster, topic)
    table = loaded(topic.name)
    assert values_of(table.scan().to_arrow()) == values_in(cluster, topic)
    if operations is not None:
        last = table.current_snapshot().summary["spark-log.transaction-version"]
        summaries = (each.summary for each in table.snapshots())
        done = [each for each in summaries if each["spark-log.transaction-version"] == last]
        assert [each.operation.value for each in done] == operations
