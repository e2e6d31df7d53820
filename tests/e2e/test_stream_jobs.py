"""The stream jobs as a user starts them: a TOML file, bad and late records, SIGTERM, and a restart that continues."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_log.cluster.cluster import Cluster
from spark_log.facts.groups import group_lag
from spark_log.facts.metrics.history import read_queries
from spark_log.ids import OffsetRange
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.jobs import window
from tests.e2e.test_jobs import command, environment, summary_of
from tests.support.spark import run_job
from tests.support.topics import append, make, stored
from tests.support.waiting import ended

pytestmark = pytest.mark.slow

CONFIG = """
subscribe = "flights"
value-schema = "origin STRING, at TIMESTAMP, delay DOUBLE"
event-time = "at"
watermark = "0 seconds"
group-by = ["origin"]
aggregate = ["count as flights", "mean(delay) as mean_delay"]
to-topic = "delays"
dead-letter-topic = "bad"
group-id = "windows"
json = true
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ClientLog]:
    (tmp_path / "cluster").mkdir()
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        for name in ("flights", "delays", "bad"):
            make(cluster, name)
        log = ClientLog(cluster)
        yield log
        log.close()


def flight(origin: str, at: str, delay: float) -> str:
    return json.dumps({"origin": origin, "at": f"2013-01-01T{at}:00Z", "delay": delay})


def records(log: ClientLog, topic: str) -> list[dict[str, Any]]:
    ranges = {tp: OffsetRange(*positions) for tp, positions in log.positions(log.find_topic(topic)).items()}
    return [row for batch in log.read(ranges) for row in batch.to_pylist()]


def delays(log: ClientLog) -> list[tuple[str, str, int, float]]:
    found = records(log, "delays")
    rows = [json.loads(record["value"]) for record in found]
    for row, record in zip(rows, found, strict=True):
        assert json.loads(record["key"]) == {"window_start": row["window_start"], "origin": row["origin"]}
    return sorted((row["window_start"][11:16], row["origin"], row["flights"], row["mean_delay"]) for row in rows)


def test_the_window_job_ends_at_sigterm_and_continues(spark: SparkSession, log: ClientLog, tmp_path: Path) -> None:
    """First spark-submit with the settings of conf/, then in this process."""
    folder = tmp_path / "cluster"
    (tmp_path / "job.toml").write_text(CONFIG)
    job = ["--config", str(tmp_path / "job.toml"), "--window", "1 hour", "--checkpoint", str(tmp_path / "checkpoint")]
    append(log, "flights", flight("EWR", "05:00", 10), flight("EWR", "05:30", 20), "no JSON", flight("JFK", "05:10", 2))
    append(log, "flights", flight("EWR", "06:10", 1))
    first = [("05:00", "EWR", 2, 15.0), ("05:00", "JFK", 1, 2.0)]

    started = subprocess.Popen(command("window", *job), env=environment(folder), stdout=subprocess.PIPE, text=True)
    try:
        while len(delays(log)) < len(first) and ended(started, 0.2) is None:
            pass
        started.send_signal(signal.SIGTERM)
        said, _ = started.communicate()
    finally:
        started.kill()
    assert started.returncode == 0, said
    assert delays(log) == first
    summary = summary_of(said)
    assert (summary["records"], summary["malformed"], summary["late"]) == (5, 1, 0)
    assert (summary["before"], summary["after"]) == ({"flights": {"0": 0}}, {"flights": {"0": 5}})

    append(log, "flights", flight("EWR", "05:45", 99), flight("EWR", "07:00", 3), "[1]")
    again = summary_of(run_job(spark, folder, "window", *job, "--trigger", "available-now").out)
    assert (again["records"], again["malformed"], again["late"]) == (3, 1, 1)
    assert again["before"] == summary["after"]
    assert delays(log) == [*first, ("06:00", "EWR", 1, 1.0)]
    letters = records(log, "bad")
    assert [letter["value"] for letter in letters] == [b"no JSON", b"[1]"]
    assert all(letter["headers"] for letter in letters), "with the reason"
    assert [lag.lag for lag in group_lag(log.cluster, "windows")] == [0]
    reports = read_queries(log.cluster, from_ms=0)
    assert [(report.query_name, report.state, report.lag) for report in reports] == [("window", "terminated", 0)]


def test_running_totals(spark: SparkSession, log: ClientLog, tmp_path: Path) -> None:
    append(log, "flights", *(flight(origin, "05:00", delay) for origin, delay in (("EWR", 1), ("JFK", 2), ("EWR", 5))))
    said = run_job(
        spark, tmp_path / "cluster", "aggregate", "--subscribe", "flights",
        "--value-schema", "origin STRING, delay DOUBLE", "--group-by", "origin",
        "--aggregate", "max(delay)", "--to-topic", "delays", "--max-offsets-per-trigger", "2",
        "--checkpoint", str(tmp_path / "checkpoint"), "--trigger", "available-now",
    ).out  # fmt: skip
    values = [(record["key"], json.loads(record["value"])["max_delay"]) for record in records(log, "delays")]
    assert sorted(values) == [(b"EWR", 1.0), (b"EWR", 5.0), (b"JFK", 2.0)]
    assert "batch 0: 2 records" in said
    assert "aggregate: 3 records" in said


def test_missing_clusters_and_topics_are_named_before_spark_starts(
    log: ClientLog, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LOG_CLUSTER", raising=False)
    (tmp_path / "job.toml").write_text(CONFIG)
    job = ["--config", str(tmp_path / "job.toml"), "--window", "1 hour", "--checkpoint", "c"]
    for more, said in [
        (["--cluster", str(tmp_path / "nowhere")], "no cluster at"),
        (["--subscribe", "trains"], "topic 'trains': unknown topic or partition"),
        (["--to-topic", "late"], "topic 'late': unknown topic or partition (make it with"),
        (["--dead-letter-topic", "lost"], "topic 'lost': unknown topic or partition"),
    ]:
        assert window.main(["--cluster", str(tmp_path / "cluster"), *job, *more]) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("window: ")
        assert said in line
    assert stored(log.cluster, "delays") == {}
