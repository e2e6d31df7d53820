"""The jobs, under spark-submit and in the Spark of a program: files to a topic to files; errors, signals."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_log.cluster.cluster import Cluster
from spark_log.facts.topics import describe_topics
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import alter_configs, create_topic
from spark_log.spark.jobs.queries import query_runner
from spark_log.tables.lag_measurement import delta_lags
from tests.support.records import append_keyed, rows_of
from tests.support.resources import files_with
from tests.support.spark import run_job
from tests.support.waiting import LIMIT_S

REPOSITORY = Path(__file__).parents[2]
SUBMIT = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
SETTINGS = ["--properties-file", str(REPOSITORY / "conf" / "spark-defaults.conf"), "--conf", "spark.ui.enabled=false"]

pytestmark = pytest.mark.slow


def command(job: str, *arguments: str) -> list[str]:
    return [*SUBMIT, *SETTINGS, str(REPOSITORY / "jobs" / f"{job}.py"), *arguments]


def environment(cluster: Path) -> dict[str, str]:
    return {**os.environ, "SPARK_LOG_CLUSTER": str(cluster)}


def submit_plainly(cluster: Path, job: str, *arguments: str, exit_code: int = 0) -> tuple[str, list[str]]:
    """Run a job without any settings in an empty folder; returns stdout, and the lines of stderr."""
    folder = cluster.with_name("empty")
    folder.mkdir(exist_ok=True)
    script = str(REPOSITORY / "jobs" / f"{job}.py")
    out, err = run([SUBMIT[0], script, *arguments], environment(cluster), folder, exit_code)
    return out, err.splitlines()


def run(arguments: list[str], settings: dict[str, str], folder: Path, exit_code: int) -> tuple[str, str]:
    done = subprocess.run(arguments, env=settings, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout, done.stderr


def summary_of(output: str) -> dict[str, Any]:
    events = [json.loads(line) for line in output.splitlines() if line.startswith('{"event"')]
    assert events[-1]["event"] == "summary"
    return {**events[-1], "batches": [event["records"] for event in events[:-1]]}


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    folder = tmp_path / "cluster"
    Cluster.init(str(folder)).close()
    return folder


def test_a_file_is_copied_into_a_topic_by_batch_and_out_by_a_bounded_stream(
    spark: SparkSession, cluster: Path, tmp_path: Path
) -> None:
    lines = [
        f"{number},{'' if number % 10 == 0 else f'k{number % 7}'},2013-01-01T{number % 24:02d}:00:00Z"
        for number in range(500)
    ]
    (tmp_path / "in.csv").write_text("\n".join(["id,name,at", *lines]))
    produce = ["events", str(tmp_path / "in.csv"), "--key", "name", "--timestamp", "at", "--header", "id=id"]
    create = ["--create-topic", "--partitions", "3", "--json"]
    warning = "topic 'events': 500 records of 2013-01-01, older than retention.ms=604800000 (7 days): retention deletes"
    printed, logged = submit_plainly(cluster, "produce", *produce, *create)
    assert len(logged) <= 9, "\n".join(logged)
    assert [line for line in logged if warning in line]
    assert not [line for line in logged if "data source" in line]
    sent = summary_of(printed)
    assert sent["records"] == 500
    assert sent["expired"]["records"] == 500
    stages = sent["stages"]
    assert min(stages.values()) > 0
    assert sum(stages.values()) - stages["start"] == pytest.approx(sent["seconds"], abs=0.1)
    [would] = run_tasks(str(cluster), ["retention"], dry_run=True)
    assert (would.topic, would.before.records) == ("events", 500)
    with Cluster.open(str(cluster)) as opened:  # as the warning says
        alter_configs(opened, "events", {"retention.ms": "-1"})
    assert list(run_tasks(str(cluster), ["retention"])) == []
    assert sum(sent["after"]["events"].values()) == 500
    assert set(sent["before"]["events"].values()) == {0}

    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    stream = ["--stream", "--checkpoint", checkpoint, "--max-offsets-per-trigger", "200"]
    wanted = ["--value-schema", "id INT, name STRING", "--headers", "--group-id", "readers"]
    consume = ["--subscribe", "events", "--parquet", out, *wanted, *stream, "--json"]
    read = summary_of(run_job(spark, cluster, "consume", *consume).out)
    assert read["records"] == 500
    assert (read["bytes"], read["malformed"]) == (sent["bytes"], 0)
    assert len(read["batches"]) >= 3
    assert max(read["batches"]) <= 200
    assert (read["before"], read["after"]) == (sent["before"], sent["after"])
    rows = pq.read_table(out).to_pylist()
    assert sorted(row["id"] for row in rows) == list(range(500))
    for row in rows:
        assert row["_key"] == row["name"] == (None if row["id"] % 10 == 0 else f"k{row['id'] % 7}")
        assert row["_timestamp"].hour == row["id"] % 24
        assert row["_headers"] == [{"key": "id", "value": str(row["id"]).encode()}]

    again = summary_of(run_job(spark, cluster, "consume", *consume).out)
    assert again["records"] == 0, "the checkpoint remembers"
    assert read["stages"]["writing"] > 0 == again["stages"]["writing"]
    assert pq.read_table(out).num_rows == 500


def test_without_java_a_job_says_what_to_install(cluster: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id\n1\n")
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname"):  # Spark's launcher is a shell script
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    without = {name: value for name, value in environment(cluster).items() if name != "JAVA_HOME"}
    script = [sys.executable, str(REPOSITORY / "jobs" / "produce.py"), "events", str(tmp_path / "in.csv")]
    run = subprocess.run(
        [*script, "--create-topic"],
        env={**without, "PATH": str(tmp_path / "bin")}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 1
    *_, said = run.stderr.splitlines()
    assert said.startswith("produce: Java did not start") and "Java 17" in said and "JAVA_HOME" in said


def test_errors_are_one_line(spark: SparkSession, cluster: Path, tmp_path: Path) -> None:
    absent = run_job(spark, cluster, "produce", "nope", "in.csv", exit_code=1).err
    assert absent.startswith("produce: no file matches 'in.csv'")
    said = run_job(spark, cluster, "consume", "--subscribe", "nope", exit_code=1).err
    assert said == ("consume: topic 'nope': unknown topic or partition (make it with `spark-log topic create nope`)\n")
    (tmp_path / "in.csv").write_text(f"id,name\n1,{'x' * 2_000_000}\n")
    arguments = ["events", str(tmp_path / "in.csv"), "--value", "name", "--create-topic"]
    out, logged = submit_plainly(cluster, "produce", *arguments, exit_code=1)
    assert out == "produce: value: the record in row 0 has 2000088 bytes, max.message.bytes is 1048588\n"
    assert len(logged) <= 8, "\n".join(logged)


def test_help_and_wrong_usage(cluster: Path) -> None:
    for job in ("produce", "consume"):
        script = [sys.executable, str(REPOSITORY / "jobs" / f"{job}.py")]
        help_ = subprocess.run([*script, "--help"], capture_output=True, text=True, check=True).stdout
        assert "--cluster" in help_
        assert "Examples" in help_
        assert subprocess.run(script, capture_output=True, env=environment(cluster)).returncode == 2


def test_sigterm_lets_the_batch_finish(
    spark: SparkSession, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill of spark-submit, whose JVM gets the signal, is in test_stream_jobs.py."""
    monkeypatch.setattr(query_runner, "STOP_WAIT_S", LIMIT_S)  # a batch that is stopped after it is not counted
    with Cluster.open(str(cluster)) as opened:
        create_topic(opened, "ticks")
    arguments = ["ticks", "--format", "rate", "--option", "rowsPerSecond=20", "--stream", "--json"]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--trigger", "3 seconds"]
    summary = summary_of(run_job(spark, cluster, "produce", *arguments, until=lambda out: '"progress"' in out).out)
    assert summary["records"] == sum(summary["batches"]) > 0
    with Cluster.open(str(cluster)) as opened:
        (described,) = describe_topics(opened, ["ticks"])
        lags = {topic_id for topic_id, _ in opened.store.read(delta_lags)}
        assert described.topic.topic_id not in lags, "the job seals what its last micro-batches left"
    assert described.partitions[0].high_watermark == summary["records"]


@pytest.mark.delta_jars
def test_mode_ignore_leaves_a_delta_table_as_it_is(spark: SparkSession, cluster: Path, tmp_path: Path) -> None:
    with Cluster.open(str(cluster)) as opened:
        topic, log = create_topic(opened, "t"), ClientLog(opened)
        append_keyed(log, topic, (b"k", b"v"))
        log.close()
    arguments = ["--subscribe", "t", "--delta", str(tmp_path / "table"), "--mode", "ignore", "--json"]
    counts = [summary_of(run_job(spark, cluster, "consume", *arguments).out)["records"] for _ in range(2)]
    assert counts == [1, 0]
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 1


def test_erase_reads_its_keys_from_parquet(spark: SparkSession, cluster: Path, tmp_path: Path) -> None:
    with Cluster.open(str(cluster)) as opened:
        topic, log = create_topic(opened, "t", 2), ClientLog(opened)
        for partition in (0, 1):
            append_keyed(log, topic, (b"goes", b"private"), (b"stays", b"1"), (b"goes too", b"x"), partition=partition)
        log.close()
        pq.write_table(pa.table({"id": ["goes", "nobody", "goes"]}), tmp_path / "keys.parquet")
        keys = ["--keys-parquet", str(tmp_path / "keys.parquet"), "--keys-column", "id", "--key", "goes too"]
        summary = summary_of(run_job(spark, cluster, "erase", "t", *keys, "--purge", "--json").out)
        assert (summary["keys"], summary["records"], summary["partitions"]) == (3, 4, 2)
        assert rows_of(log, topic) == [(0, 1, b"stays", b"1"), (1, 1, b"stays", b"1")]
        assert summary["purged"]["files"] == 2, "what the tails were sealed into"
    assert files_with(cluster, b"private") == []
