"""The declarative pipeline of examples/pipeline: killed while it runs, and started again, it has each record once."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet
import pytest

from spark_log import Cluster, Producer, create_topic
from spark_log.maintenance.client_log import ClientLog
from tests.support.records import read_all

TRANSFORMATIONS = Path(__file__).resolve().parents[2] / "examples" / "pipeline"
ON_A_FREE_PORT = "import os; os.environ['SPARK_TESTING'] = '1'"
"""Spark Connect then selects a free port. Only the Python processes have it: a JVM with it would test itself."""
CHANGES = [(0, "Ann", "insert"), (1, "Bob", "insert"), (2, "Cy", "insert"), (1, "Bert", "update"), (2, "Cy", "delete")]


def send(cluster: str, topic: str, values: list[dict[str, object]]) -> None:
    with Producer(cluster=cluster) as producer:
        for value in values:
            producer.send(topic, json.dumps(value).encode(), key=str(value["id"]).encode())


def orders(ids: range) -> list[dict[str, object]]:
    return [{"id": number, "customer": number % 3, "amount": number * 10} for number in ids]


@contextmanager
def pipeline(folder: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        Path(sys.executable).with_name("spark-pipelines"),
        "run",
        "--conf",
        "spark.sql.catalogImplementation=hive",
    ]
    with (
        (folder / "output").open("ab") as output,
        subprocess.Popen(
            command, cwd=folder, env={**os.environ, **environment}, stdout=output, stderr=output, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_pipeline_has_each_record_once(tmp_path: Path) -> None:
    address = str(tmp_path / "log")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(ON_A_FREE_PORT)
    environment = {"SPARK_LOG_CLUSTER": address, "PYTHONPATH": str(tmp_path / "path")}
    project = tmp_path / "shop"
    shutil.copytree(TRANSFORMATIONS, project / "transformations", ignore=shutil.ignore_patterns("__pycache__"))
    specification = {
        "name": "shop",
        "storage": (project / "storage").as_uri(),
        "libraries": [{"glob": {"include": "transformations/**"}}],
        "configuration": {"spark.sql.shuffle.partitions": "2"},
    }
    (project / "spark-pipeline.yml").write_text(json.dumps(specification))  # YAML includes JSON
    with Cluster.init(address) as cluster:
        create_topic(cluster, "orders", 2)
        create_topic(cluster, "customers", 2)
        output = create_topic(cluster, "large-orders", 2)
        send(address, "orders", orders(range(20)))
        send(address, "customers", [dict(zip(("id", "name", "operation"), change, strict=True)) for change in CHANGES])
        log = ClientLog(cluster)

        def large() -> list[int]:
            return sorted(json.loads(value)["id"] for _, _, value in read_all(log, output))

        with pipeline(project, environment) as process:
            deadline = time.monotonic() + 240
            while not large():  # Spark notes afterwards that the batch is complete
                assert process.poll() is None and time.monotonic() < deadline, (project / "output").read_text()[-5000:]
                time.sleep(0.01)
        send(address, "orders", orders(range(20, 30)))
        with pipeline(project, environment) as process:
            assert process.wait(timeout=300) == 0, (project / "output").read_text()[-5000:]
        assert large() == list(range(10, 30))
        log.close()

    def table(name: str) -> list[dict[str, object]]:
        return pyarrow.parquet.read_table(project / "spark-warehouse" / name).to_pylist()

    assert sorted(row["id"] for row in table("orders")) == list(range(30))  # type: ignore[type-var]
    assert {row["customer"]: row["amount"] for row in table("revenue")} == {0: 1350, 1: 1450, 2: 1550}
    assert sorted((row["id"], row["name"]) for row in table("customers")) == [(0, "Ann"), (1, "Bert")]  # type: ignore[type-var]
