"""A table joined to a stream: current in every micro-batch, and unchanged when a micro-batch is repeated."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidOptionError, PolicyViolationError
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import add_partitions
from spark_log.spark.streams import live_table, outputs
from spark_log.spark.streams.compacted_tables import last_in_partitions, last_values, read_table
from spark_log.spark.streams.formats.codecs import Json
from spark_log.spark.streams.live_table import OTHERS, Table, changed_row, newest_rows
from spark_log.spark.streams.outputs import TopicOutput, write_stream
from tests.support.records import append_keyed
from tests.support.replicas import truncate
from tests.support.spark import assert_same_rows
from tests.support.stores import refuse_first_reads
from tests.support.topics import all_stored, append, compact_now, fails, make, read_stream

FIELDS = ("value", "partition", "offset", "timestamp")


@pytest.fixture
def topics(cluster: Cluster, log: ClientLog) -> None:
    """`planes`: a has 1 seat, b 1, in files; `flights` with the tail number as value; two outputs."""
    make(cluster, "flights", 2)
    make(cluster, "first")
    make(cluster, "second")
    make(cluster, "planes", 2, cleanup_policy="compact", inline_max_bytes="0")
    change(log, a=1, b=1)


def change(log: ClientLog, **seats: int | None) -> None:
    """New values of planes; None: deleted. Keys from m on are in partition 1."""
    for partition in (0, 1):
        rows = [
            (key.encode(), None if value is None else str(value).encode())
            for key, value in seats.items()
            if (key >= "m") == bool(partition)
        ]
        if rows:
            append_keyed(log, log.find_topic("planes"), *rows, partition=partition)


def joined(planes: Table, batch: DataFrame) -> DataFrame:
    """Records "tail number:seats"."""
    with_plane = planes.join(batch.select(sf.col("value").cast("string").alias("tail")), on="tail")
    seats = sf.coalesce(sf.col("planes.value").cast("string"), sf.lit("-"))
    return with_plane.select(sf.concat_ws(":", "tail", seats).alias("value"))


def run(spark: SparkSession, cluster: Cluster, checkpoint: Path, to: str = "first", *more: str) -> None:
    """Process all available records in one batch and write them to these topics, one after the other."""
    address = str(cluster.store.address)
    flights = read_stream(spark, cluster, subscribe="flights", startingOffsets="earliest")
    with Table(spark, address, "planes") as planes:
        query = write_stream(
            flights,
            lambda batch: [(joined(planes, batch), TopicOutput(address, topic)) for topic in (to, *more)],
            checkpoint=str(checkpoint),
            trigger="available-now",
        )
        query.awaitTermination()


@pytest.mark.slow
def test_the_join_sees_changes_during_the_query(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, tmp_path: Path
) -> None:
    address = str(cluster.store.address)
    flights = read_stream(spark, cluster, subscribe="flights", startingOffsets="earliest")
    rounds: list[tuple[dict[str, int | None], list[str]]] = [
        ({}, ["a:1", "b:1", "z:-"]),
        ({"a": 2, "z": 3}, ["a:2", "b:1", "z:3"]),
        ({"b": None}, ["a:2", "b:-", "z:3"]),
        ({"b": 4, "a": None, "c": 5}, ["a:-", "b:4", "z:3", "c:5"]),
    ]
    expected: list[str] = []
    with Table(spark, address, "planes") as planes:
        query = write_stream(
            flights,
            lambda batch: [(joined(planes, batch), TopicOutput(address, "first"))],
            checkpoint=str(tmp_path / "checkpoint"),
        )
        try:
            for number, (changes, values) in enumerate(rounds):
                change(log, **changes)
                if number == 3:
                    compact_now(cluster, "planes")  # the log no longer has the records that the query has read
                append(log, "flights", *(value[0] for value in values), partition=number % 2)
                query.processAllAvailable()
                expected += values
                assert all_stored(cluster, "first") == sorted(expected)
        finally:
            query.stop()
        assert_same_rows(planes.rows(), read_table(spark, cluster, "planes"))


@pytest.mark.slow
def test_inner_and_left_joins_of_a_batch_frame(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None
) -> None:
    frame = spark.createDataFrame([("a", 1), ("a", 2), ("x", 3), (None, 4)], "tail string, n int")
    with Table(spark, str(cluster.store.address), "planes") as planes:
        seats = sf.col("plane.value").cast("string").alias("seats")
        for changes in ({}, {"x": 7, "b": None}):  # the second join has changes besides the base
            change(log, **changes)
            x = "7" if changes else None
            left = planes.join(frame, "tail", name="plane").select("tail", "n", seats)
            expected = [("a", 1, "1"), ("a", 2, "1"), ("x", 3, x), (None, 4, None)]
            assert_same_rows(left, expected)
            inner = planes.join(frame, sf.col("tail").cast("binary"), how="inner", name="plane")
            inner = inner.select("tail", "n", seats)
            assert_same_rows(inner, [row for row in expected if None not in row])
            assert_same_rows(planes.rows(), read_table(spark, cluster, "planes"))


def test_a_truncated_log_is_read_again(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, caplog: pytest.LogCaptureFixture
) -> None:
    change(log, a=2)
    with Table(spark, str(cluster.store.address), "planes") as planes:
        assert {bytes(row.key): bytes(row.value) for row in planes.rows().collect()} == {b"a": b"2", b"b": b"1"}
        truncate(cluster, "planes", 2)
        change(log, b=3)  # as long as before the truncation
        with caplog.at_level(logging.WARNING):
            assert {bytes(row.key): bytes(row.value) for row in planes.rows().collect()} == {b"a": b"1", b"b": b"3"}
        assert "an unclean leader election truncated records of the table" in caplog.text


@pytest.mark.slow
def test_rows_that_an_executor_has_lost_are_read_again_although_their_files_were_deleted(
    spark: SparkSession, cluster: Cluster, log: ClientLog
) -> None:
    make(cluster, "planes", inline_max_bytes="0", file_delete_delay_ms="0", cleanup_policy="compact")
    for number in range(11):
        change(log, **{f"a{number}": number})
    frame = spark.createDataFrame([("a3",)], "tail string")
    with Table(spark, str(cluster.store.address), "planes") as planes:
        for _ in range(2):
            assert [row.planes.value for row in planes.join(frame, "tail").collect()] == [b"3"]
            list(run_tasks(cluster, ["merge", "files"]))
            lose_cached_rows(spark)


def lose_cached_rows(spark: SparkSession) -> None:
    """As if all executors had been lost, with their persisted rows and files of shuffles."""
    java = spark._jvm.org.apache.spark.SparkEnv.get()  # type: ignore[union-attr]
    for frame in spark.sparkContext._jsc.getPersistentRDDs().keySet():
        java.blockManager().master().removeRdd(frame, True)
    for shuffle in filter(java.mapOutputTracker().containsShuffle, range(2_000)):
        java.mapOutputTracker().unregisterAllMapAndMergeOutput(shuffle)


def test_a_key_in_several_partitions_has_the_row_with_the_largest_time(
    spark: SparkSession, cluster: Cluster, log: ClientLog
) -> None:
    """Also if the table was read before a partition was added: a repeated batch may read it anew."""
    make(cluster, "planes", cleanup_policy="compact")
    append(log, "planes", "newest", key=b"a", timestamp_ms=9)
    append(log, "planes", None, key=b"b", timestamp_ms=9)
    frame = spark.createDataFrame([("a",), ("b",)], "key string")
    with Table(spark, str(cluster.store.address), "planes") as planes:
        assert planes.rows().count() == 1
        add_partitions(cluster, "planes", 2)
        append(log, "planes", "older", key=b"a", partition=1, timestamp_ms=5)
        append(log, "planes", "deleted", key=b"b", partition=1, timestamp_ms=5)
        rows = planes.join(frame, "key").select("key", sf.col("planes.value").cast("string"))
        assert dict(rows.collect()) == {"a": "newest", "b": None}
        assert_same_rows(planes.rows(), read_table(spark, cluster, "planes"))


def test_changed_rows_are_those_that_all_records_together_have(spark: SparkSession) -> None:
    """Of 300 keys, each with up to 6 records in 3 partitions, where later records may have an earlier time."""
    drawn = Random(1)
    records = [
        (f"{key}".encode(), drawn.choice([None, f"{key}-{number}".encode()]), drawn.randrange(3), number, second)
        for key in range(300)
        for number, second in enumerate(drawn.sample(range(60), drawn.randrange(1, 7)))
    ]
    columns = "key binary, value binary, partition int, offset long, second long"
    frame = spark.createDataFrame(records, columns).withColumn("timestamp", sf.timestamp_seconds("second"))
    frame = frame.drop("second").coalesce(1)
    before, since = (
        newest_rows(last_in_partitions(frame.where(part))).select(
            "key", *(sf.col(name).alias(prefix + name) for name in (*FIELDS, OTHERS))
        )
        for prefix, part in (("old_", "offset < 3"), ("new_", "offset >= 3"))
    )
    row = changed_row(FIELDS, "old_", "new_").alias("row")
    found = before.join(since, "key", "full").select("key", row).select("key", "row.*")
    assert_same_rows(found, last_values(frame))


def test_values_become_columns(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    """An invalid value counts as deleted, in the base and in later changes."""
    topic = make(cluster, "planes", cleanup_policy="compact")
    append_keyed(log, topic, (b"a", b'{"seats": 1}'), (b"bad", b"{"), (b"later", b'{"seats": 2}'))
    frame = spark.createDataFrame([("a",), ("bad",), ("later",), ("none",)], "tail string")
    with Table(spark, str(cluster.store.address), "planes", value=Json("seats INT")) as planes:
        for later in (2, None):
            rows = planes.join(frame, "tail").select("tail", "planes.seats").collect()
            assert dict(rows) == {"a": 1, "bad": None, "later": later, "none": None}
            inner = planes.join(frame, "tail", how="inner").select("tail", "planes.seats").collect()
            assert dict(inner) == {key: value for key, value in dict(rows).items() if value is not None}
            assert {row.key for row in planes.rows().collect()} == {row.tail.encode() for row in inner}
            append_keyed(log, topic, (b"later", b"nonsense"))


def test_a_failover_ends_no_query(
    spark: SparkSession,
    cluster: Cluster,
    log: ClientLog,
    topics: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the table nor the transaction of a batch with two outputs, whose every read is refused once."""
    address = str(cluster.store.address)
    append(log, "flights", "a")
    flights = read_stream(spark, cluster, subscribe="flights", startingOffsets="earliest")
    monkeypatch.setitem(Cluster.open.__func__.__kwdefaults__, "read_timeout_ms", 0)  # type: ignore[attr-defined]
    with monkeypatch.context() as patch, Table(spark, address, "planes") as planes:

        def route(batch: DataFrame) -> list[tuple[DataFrame, outputs.Output]]:
            refuse_first_reads(patch)
            return [(joined(planes, batch), TopicOutput(address, topic)) for topic in ("first", "second")]

        write_stream(
            flights, route, checkpoint=str(tmp_path / "checkpoint"), trigger="available-now"
        ).awaitTermination()
    assert all_stored(cluster, "first") == all_stored(cluster, "second") == ["a:1"]


def test_invalid_joins_are_refused(spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None) -> None:
    address = str(cluster.store.address)
    with pytest.raises(PolicyViolationError, match="'flights' is not compacted"):
        Table(spark, address, "flights")
    frame = spark.createDataFrame([("a", 1)], "tail string, Planes int")
    stream = read_stream(spark, cluster, subscribe="flights")
    with Table(spark, address, "planes") as planes:
        for message, call in {
            "on 'x': no such column: there are tail, Planes": lambda: planes.join(frame, "x", name="p"),
            "on 'Planes' is int, expected text or bytes": lambda: planes.join(frame, "Planes", name="p"),
            "name 'planes': the batch has a column of this name": lambda: planes.join(frame, "tail"),
            "how 'full': expected inner or left": lambda: planes.join(frame, "tail", how="full"),
            "table 'planes': a streaming frame is joined batch by batch": lambda: planes.join(stream, "value"),
        }.items():
            with pytest.raises(InvalidOptionError, match=message):
                call()


def dies_at(point: str, count: int) -> Callable[[str], None]:
    """A failpoint that raises: the query ends there as in a crash, and this process continues."""
    passed = [0]

    def failpoint(name: str) -> None:
        if name == point:
            passed[0] += 1
            if passed[0] == count:
                raise RuntimeError(f"died at {point}")

    return failpoint


@pytest.mark.slow
def test_a_repeated_batch_sees_the_same_table(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, tmp_path: Path
) -> None:
    """The batch ends at one point after the other, and the table changes each time."""
    checkpoint = tmp_path / "checkpoint"
    append(log, "flights", "a", "b", "z")
    for seats, (point, count) in enumerate(
        [("stream.table-noted", 1), ("stream.output-written", 1), ("stream.output-written", 2)], 2
    ):
        with pytest.MonkeyPatch.context() as patch:
            for module in (live_table, outputs):
                patch.setattr(module, "failpoint", dies_at(point, count))
            with fails(f"died at {point}"):
                run(spark, cluster, checkpoint, "first", "second")
        change(log, a=seats, b=None, z=seats)
    append(log, "flights", "a")
    run(spark, cluster, checkpoint, "first", "second")
    assert all_stored(cluster, "first") == all_stored(cluster, "second") == ["a:1", "a:4", "b:1", "z:-"]


def test_a_repeated_batch_after_a_compaction(
    spark: SparkSession,
    cluster: Cluster,
    log: ClientLog,
    topics: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The recorded version no longer exists: the batch uses the current one, which is never older."""
    append(log, "flights", "a", "b", "z")
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "failpoint", dies_at("stream.batch-begun", 1))
        with fails("died at"):
            run(spark, cluster, tmp_path / "checkpoint")
    [note] = (tmp_path / "checkpoint" / "spark-log-notes" / cluster.cluster_id / "planes").glob("0")
    assert json.loads(note.read_text())["partitions"] == {"0": [0, 2, 0], "1": [0, 0, 0]}
    change(log, a=2, z=3)
    compact_now(cluster, "planes")
    with caplog.at_level(logging.WARNING):
        run(spark, cluster, tmp_path / "checkpoint")
    assert all_stored(cluster, "first") == ["a:2", "b:1", "z:3"]
    assert "table planes: records of the version that this batch used before" in caplog.text
    assert json.loads(note.read_text())["partitions"]["0"] == [0, 3, 1]
