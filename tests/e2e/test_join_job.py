"""The join job: flights joined with the weather of their hour and with their plane; ended and restarted."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog
from tests.e2e.test_jobs import summary_of
from tests.support.records import append_keyed
from tests.support.spark import run_job
from tests.support.topics import all_stored, append, make

pytestmark = pytest.mark.slow

HOUR = "2013-01-01T{:02d}:00:00Z"


def fly(log: ClientLog, flight: int, tail: str, hour: int) -> None:
    append(log, "flights", json.dumps({"flight": flight, "origin": "JFK", "tail": tail, "hour": HOUR.format(hour)}))


def blow(log: ClientLog, wind: float, hour: int) -> None:
    append(log, "weather", json.dumps({"origin": "JFK", "hour": HOUR.format(hour), "wind": wind}))


def joined(cluster: Cluster) -> dict[int, tuple[float | None, int | None]]:
    """Flight -> (wind, seats) of the records in `out`; each flight occurs once."""
    rows: list[Any] = [json.loads(value) for value in all_stored(cluster, "out")]
    found = {row["flight"]: (row.get("wind"), row.get("planes", {}).get("seats")) for row in rows}
    assert len(found) == len(rows)
    return found


def test_the_join_job_ends_at_sigterm_and_continues_at_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with Cluster.init(str(folder)) as cluster:
        log = ClientLog(cluster)
        for topic in ("flights", "weather", "out"):
            make(cluster, topic)
        planes = make(cluster, "planes", cleanup_policy="compact")
        append_keyed(log, planes, (b"N1", b'{"seats": 100}'), (b"N2", b'{"seats": 200}'))
        (tmp_path / "join.toml").write_text(f"""
            left-subscribe = "flights"
            left-value-schema = "flight INT, origin STRING, tail STRING, hour TIMESTAMP"
            left-event-time = "hour"
            left-watermark = "1 hour"
            right-subscribe = "weather"
            right-value-schema = "origin STRING, hour TIMESTAMP, wind DOUBLE"
            right-event-time = "hour"
            right-watermark = "1 hour"
            on = ["origin", "hour"]
            how = "left"
            table = "planes"
            table-value-schema = "seats INT"
            table-on = "tail"
            to-topic = "out"
            key = "flight"
            checkpoint = "{tmp_path / "checkpoint"}"
            trigger = "100 milliseconds"
            json = true
        """)
        job = ["--config", str(tmp_path / "join.toml")]
        fly(log, 1, "N1", 0)
        blow(log, 10.5, 0)
        first = run_job(spark, folder, "join", *job, until=lambda out: '"progress"' in out).out
        assert summary_of(first)["records"] == 2
        assert joined(cluster) == {1: (10.5, 100)}
        append_keyed(log, planes, (b"N1", b'{"seats": 101}'), (b"N2", None))
        for flight, tail, hour in ((2, "N1", 0), (3, "N2", 0), (4, "N1", 1), (5, "N1", 9)):
            fly(log, flight, tail, hour)
        blow(log, 9.5, 9)
        again = run_job(spark, folder, "join", *job, "--trigger", "available-now").out
        assert summary_of(again)["records"] == 5
        expected = {1: (10.5, 100), 2: (10.5, 101), 3: (10.5, None), 4: (None, 101), 5: (9.5, 101)}
        assert joined(cluster) == expected, "4 had no weather: its row came when the watermark had passed"
        log.close()
