"""Spark with Iceberg's runtime in the environment of `make test-spark41`, and the rows that it should read."""

import math
import os
import pickle
import subprocess
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.log.records.schema import read_schema
from spark_log.maintenance.client_log import ClientLog
from spark_log.tables.publication import delta_tables, publish
from tests.support import iceberg_spark_process
from tests.support.python_process import REPOSITORY
from tests.support.records import ranges_of

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
    batches = list(log.read(ranges_of(log, topic), schema))
    return ordered([row for batch in batches for row in batch.to_pylist()])


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
