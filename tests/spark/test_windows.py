"""Windows and running aggregates over a topic, with records that arrive out of order, twice, and late."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidOptionError
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.streams import (
    Session,
    Sliding,
    TopicOutput,
    Tumbling,
    late_records,
    running,
    windowed,
    write_stream,
)
from spark_log.spark.streams.windows import Window
from tests.support.topics import append, make, read_stream, stored

BATCHES = (
    (("a", "00:05", 1), ("a", "00:05", 1), ("b", "00:50", 2)),  # one of them twice
    (("a", "01:10", 4), ("a", "00:20", 8), ("a", "01:10", 4)),  # out of order, within the watermark
    (("a", "03:00", 16), ("a", "03:00", 16), ("b", "03:01", 32)),
    (("a", "00:30", 64), ("a", "00:30", 64), ("b", "02:55", 128)),  # a's are late
    (("c", "09:00", 256), ("c", None, 512), ("c", "09:00", 256)),  # ends all windows but its own
)
WATERMARK = "10 minutes"
Result = tuple[str, str, str, int, int]
"""The beginning and end of a window, its key, count and total."""
AGGREGATES = ("count", "sum(x) as total")
TUMBLING = [
    ("00:00", "01:00", "a", 3, 10),
    ("00:00", "01:00", "b", 1, 2),
    ("01:00", "02:00", "a", 2, 8),
    ("02:00", "03:00", "b", 1, 128),
    ("03:00", "04:00", "a", 2, 32),
    ("03:00", "04:00", "b", 1, 32),
]
SLIDING = [
    (
        "00:00",
        "02:00",
        "a",
        7,
        146,
    ),  # with a's late records: the watermark of the previous batch, 01:00, applied to them
    ("00:00", "02:00", "b", 1, 2),
    ("01:00", "03:00", "a", 2, 8),
    ("01:00", "03:00", "b", 1, 128),
    ("02:00", "04:00", "a", 2, 32),
    ("02:00", "04:00", "b", 2, 160),
    ("03:00", "05:00", "a", 2, 32),
    ("03:00", "05:00", "b", 1, 32),
    ("23:00", "01:00", "a", 3, 10),
    ("23:00", "01:00", "b", 1, 2),
]
SESSIONS = [
    ("00:05", "00:50", "a", 3, 10),
    ("00:50", "01:20", "b", 1, 2),
    ("01:10", "01:40", "a", 2, 8),
    ("02:55", "03:31", "b", 2, 160),
    ("03:00", "03:30", "a", 2, 32),
]


@pytest.fixture
def topics(cluster: Cluster, log: ClientLog) -> None:
    make(cluster, "in")
    make(cluster, "out")
    feed(log, *BATCHES)


def feed(log: ClientLog, *batches: tuple[tuple[str, str | None, int], ...]) -> None:
    for batch in batches:
        rows = [{"k": k, "x": x, "at": at and f"2013-01-01T{at}:00Z"} for k, at, x in batch]
        append(log, "in", *(json.dumps(row) for row in rows))


def events(spark: SparkSession, cluster: Cluster, batch: int = 3) -> DataFrame:
    """So many events in each batch of the query; three: those of one of BATCHES."""
    records = read_stream(spark, cluster, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=batch)
    value = F.from_json(F.col("value").cast("string"), "k STRING, x BIGINT, at TIMESTAMP")
    return records.select(value.alias("value")).select("value.*")


def run(frame: DataFrame, cluster: Cluster, checkpoint: Path, mode: str = "append") -> int:
    """Run the query into topic out, as JSON; returns the number of late rows."""
    rows = frame.select(F.to_json(F.struct("*")).alias("value"))
    output = TopicOutput(str(cluster.store.address), "out")
    query = write_stream(rows, output, checkpoint=str(checkpoint), trigger="available-now", output_mode=mode)
    query.awaitTermination()
    return late_records(query)


def results(cluster: Cluster) -> list[Result]:
    """The rows of topic out, with the times of its windows as hours and minutes."""
    rows = [json.loads(value) for values in stored(cluster, "out").values() for value in values]
    return [(r["window_start"][11:16], r["window_end"][11:16], r["k"], r["count"], r["total"]) for r in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "expected", "late"),
    [
        (Tumbling("1 hour"), TUMBLING, 1),  # the two late rows of a are one row when the watermark is applied
        (Sliding("2 hours", "1 hour"), SLIDING, 1),
        (Session("30 minutes"), SESSIONS, 1),
    ],
)
def test_windows_with_late_and_duplicate_records(
    spark: SparkSession,
    cluster: Cluster,
    topics: None,
    tmp_path: Path,
    window: Window,
    expected: list[Result],
    late: int,
) -> None:
    frame = windowed(events(spark, cluster), "at", window, "k", watermark=WATERMARK, aggregates=AGGREGATES)
    assert run(frame, cluster, tmp_path / "checkpoint") == late
    assert sorted(results(cluster)) == sorted(expected)


@pytest.mark.slow
def test_changed_windows_and_groups_over_restarts(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    """Mode update, with two queries stopped and restarted: the last row of each window and group is correct."""
    make(cluster, "in")
    make(cluster, "out")
    for batches in (BATCHES[:2], BATCHES[2:]):
        feed(log, *batches)
        frame = windowed(
            events(spark, cluster), "at", Tumbling("1 hour"), "k", watermark=WATERMARK, aggregates=AGGREGATES
        )
        run(frame, cluster, tmp_path / "windows", mode="update")
    last = {(start, k): (start, end, k, *values) for start, end, k, *values in results(cluster)}
    assert sorted(last.values()) == [*TUMBLING, ("09:00", "10:00", "c", 2, 512)]

    make(cluster, "totals")
    totals = running(events(spark, cluster, 8), "k", aggregates=["count", "max(x) as top", F.min("at").alias("first")])
    output = TopicOutput(str(cluster.store.address), "totals")
    rows = totals.select(F.col("k").alias("key"), F.to_json(F.struct("*")).alias("value"))
    write_stream(
        rows, output, checkpoint=str(tmp_path / "totals"), trigger="available-now", output_mode="update"
    ).awaitTermination()
    found = {row["k"]: row for row in map(json.loads, stored(cluster, "totals")[0])}
    assert found["a"] == {"k": "a", "count": 9, "top": 64, "first": "2013-01-01T00:05:00.000Z"}
    assert [(k, row["count"], row["top"]) for k, row in sorted(found.items())] == [
        ("a", 9, 64),
        ("b", 3, 128),
        ("c", 3, 512),
    ]


def test_windows_of_a_batch_frame_and_invalid_windows(spark: SparkSession) -> None:
    rows = [("a", 1, "2013-01-01T00:05:00Z"), ("a", 2, "2013-01-01T00:55:00Z"), ("b", 4, "2013-01-01T01:00:00Z")]
    frame = spark.createDataFrame(rows, "k STRING, x BIGINT, text STRING").withColumn("at", F.to_timestamp("text"))
    found = windowed(frame, "at", Tumbling("1 hour"), aggregates=["sum(x) as total"])
    assert found.columns == ["window_start", "window_end", "total"]
    assert sorted(row.total for row in found.collect()) == [3, 4]
    for change, said in [
        ({"time": "then"}, "event time 'then': no such column: there are k, x, text, at"),
        ({"time": "text"}, "event time 'text' is string, expected timestamp"),
        ({"watermark": "late"}, "watermark 'late': expected an interval"),
        ({"by": "z"}, "group by 'z': no such column"),
        ({"aggregates": []}, "aggregates: at least one"),
        ({"aggregates": ["count", "count"]}, "there is already a column 'count'"),
        ({"aggregates": ["max(x) as k"]}, "there is already a column 'k'"),
        ({"aggregates": ["sum(y)"]}, "aggregate 'sum(y)': [UNRESOLVED_COLUMN"),
        ({"aggregates": ["sum(max(x))"]}, "aggregate 'sum(max(x))': [NESTED_AGGREGATE"),
        ({"aggregates": ["mean(k, x)"]}, "aggregate 'mean(k, x)': [WRONG_NUM_ARGS"),
    ]:
        given = {"time": "at", "by": "k", "aggregates": ["count"], "watermark": None, **change}
        with pytest.raises(InvalidOptionError) as error:
            windowed(
                frame, given["time"], Tumbling("1 hour"), given["by"],
                aggregates=given["aggregates"], watermark=given["watermark"],
            )  # fmt: skip
        assert said in str(error.value)
