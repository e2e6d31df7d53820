"""The test servers have the promised durability and isolation: tests on other servers would prove nothing."""

import gc
import os
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow.fs
import pytest
import sqlalchemy
from pyspark.sql import SparkSession
from sqlalchemy.exc import OperationalError

from spark_log.metadata import store_schema
from spark_log.metadata.address import SQLITE_FILE
from tests.support.kafka_programs import java_producer
from tests.support.postgres import PostgresServer
from tests.support.python_process import PythonProcess, output_of
from tests.support.s3 import S3Server


def show(url: str, setting: str) -> str:
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        value: str = connection.exec_driver_sql(f"SHOW {setting}").scalar_one()
    engine.dispose()
    return value


@pytest.mark.parametrize("setting", ["fsync", "synchronous_commit", "full_page_writes"])
def test_postgres_is_durable(postgres_url: str, setting: str) -> None:
    assert show(postgres_url, setting) == "on"


def test_each_test_has_its_own_database(postgres_server: PostgresServer) -> None:
    assert postgres_server.create_database() != postgres_server.create_database()


def test_committed_rows_survive_a_crash_of_postgres() -> None:
    server = PostgresServer()
    try:
        server.start()
        url = server.create_database()
        database = url.rsplit("/", 1)[1]
        server.execute("CREATE TABLE t AS SELECT 7 AS n", database)
        server.kill()
        with pytest.raises(OperationalError):
            show(url, "fsync")
        server.start()
        pid = server.pid
        server.execute("SELECT 1 / (SELECT n - 6 FROM t)", database)
    finally:
        server.stop()
        server.remove()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_cluster_address_is_fresh(cluster_address: str) -> None:
    address = cluster_address if "://" in cluster_address else f"sqlite:///{cluster_address}/{SQLITE_FILE}"
    engine = sqlalchemy.create_engine(address)
    with engine.begin() as connection:
        assert store_schema.is_empty(connection, store_schema.revision_of(connection))
    engine.dispose()


def test_object_storage_through_a_uri(s3_server: S3Server, s3_uri: str) -> None:
    storage, path = pyarrow.fs.FileSystem.from_uri(s3_uri)
    with storage.open_output_stream(f"{path}/a/b.bin") as stream:
        stream.write(b"abc")
    with storage.open_input_file(f"{path}/a/b.bin") as file:
        assert file.read() == b"abc"
    listed = s3_server.client().list_objects_v2(Bucket=s3_server.bucket, Prefix=path.split("/", 1)[1])
    assert [found["Size"] for found in listed["Contents"]] == [3]


def test_spark_reads_and_writes_delta(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    spark.range(10).write.format("delta").save(table)
    assert spark.read.format("delta").load(table).count() == 10
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_tests_of_one_spark_session_run_in_one_worker(request: pytest.FixtureRequest, spark: SparkSession) -> None:
    in_groups = request.config.getoption("loadgroup", False)  # pytest-xdist's, in its workers
    assert request.node.nodeid.endswith("@spark") == in_groups


def test_a_process_that_a_failed_test_dropped_fails_no_later_start() -> None:
    """Python asks processes that were dropped while they ran for their state before it starts another one."""
    dropped = PythonProcess("-c", "input()", stdin=subprocess.PIPE)
    assert dropped._reports is not None and dropped.stdin is not None
    dropped._reports.close()  # as the garbage collector does
    subprocess._active.append(dropped)  # type: ignore[attr-defined]
    assert output_of("print(1)") == "1\n"
    assert dropped.returncode == sys.maxsize
    dropped.stdin.close()


def test_the_next_server_at_the_port_of_an_ended_jvm_gets_no_request() -> None:
    with java_producer({"bootstrap.servers": "127.0.0.1:1"}) as producer:
        port = producer.jvm._gateway_client.port
    with socket.create_server(("127.0.0.1", port)) as server:
        socket.setdefaulttimeout(5)  # a request would wait for an answer as long as that
        try:
            del producer
            gc.collect()
        finally:
            socket.setdefaulttimeout(None)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
