"""Streaming reads: starts, limits, triggers, restarts, and errors on data loss."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_log.cluster.cluster import Cluster
from spark_log.facts.groups import group_lag
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.ids import TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import add_partitions, delete_topic
from tests.spark.queries import running
from tests.support.data_source import StreamQuery
from tests.support.records import NOON_MS
from tests.support.spark import uncommit
from tests.support.topics import append, fails, fill, make, read_stream, values

Batch = tuple[int, dict[int, list[str]]]
NOW = {"availableNow": True}


class Run:
    """A query that keeps the records of each batch. Its checkpoint outlives it."""

    def __init__(self, frame: DataFrame, checkpoint: Path, before: Callable[[int], None] | None = None) -> None:
        self.batches: list[Batch] = []

        def take(batch: DataFrame, number: int) -> None:
            if before is not None:
                before(number)
            self.batches.append((number, values(batch)))

        self._writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))

    def start(self) -> StreamingQuery:
        return self._writer.start()

    def to_end(self, **trigger: Any) -> "Run":
        query = self._writer.trigger(**(trigger or NOW)).start()
        query.awaitTermination()
        return self

    @property
    def all(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for _, batch in self.batches:
            for partition, more in batch.items():
                found.setdefault(partition, []).extend(more)
        return found


@pytest.fixture
def t(cluster: Cluster, log: ClientLog) -> None:
    make(cluster, "t", 2)
    fill(log, "t", [3, 1])


def numbers(partition: int, *bounds: int) -> list[str]:
    return [f"{partition}/{n}" for n in range(*bounds)]


# --- options --------------------------------------------------------------------------------------------------------


INVALID = [
    ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
    ({"startingOffsets": '{"t":{"0":0}}'}, "Partitions specified for start offsets don't match"),
    ({"startingTimestamp": str(NOON_MS + 10**9)}, "No offset matched from request of topic-partition t-0"),
    ({"subscribe": "nowhere"}, "unknown topic or partition"),
]


def test_invalid_options_are_named(cluster: Cluster, t: None) -> None:
    """Without Spark's processes, through which errors pass as those of data loss do (below). All other invalid options
    are in tests/unit/spark/datasource/test_options.py.
    """
    for options, message in INVALID:
        with fails(message):
            StreamQuery(cluster, **{"startingOffsets": "latest", **options}).trigger()


# --- starts ---------------------------------------------------------------------------------------------------------


def test_a_stream_starts_at_latest_and_reads_new_partitions_from_their_earliest(
    spark: SparkSession, cluster: Cluster, log: ClientLog, t: None, checkpoint: Path
) -> None:
    run = Run(read_stream(spark, cluster, subscribe="t"), checkpoint)
    with running(run.start()) as query:
        query.processAllAvailable()
        assert run.all == {}
        fill(log, "t", [2, 1], first=10)
        query.processAllAvailable()
        assert run.all == {0: numbers(0, 10, 12), 1: numbers(1, 10, 11)}
        add_partitions(cluster, "t", 3)
        append(log, "t", "new", partition=2)
        query.processAllAvailable()
        assert run.all == {0: numbers(0, 10, 12), 1: numbers(1, 10, 11), 2: ["new"]}


STARTS: list[tuple[dict[str, Any], dict[int, tuple[int, int]]]] = [
    ({"startingOffsets": "earliest"}, {0: (0, 3), 1: (0, 1)}),
    ({"startingOffsets": '{"t":{"0":-2,"1":-1}}'}, {0: (0, 3)}),
    ({"startingOffsets": '{"t":{"0":2,"1":0}}'}, {0: (2, 3), 1: (0, 1)}),
    ({"startingTimestamp": NOON_MS + 500, "startingOffsetsByTimestampStrategy": "latest"}, {0: (1, 3)}),
    ({"startingOffsets": "earliest", "maxOffsetsPerTrigger": 1}, {0: (0, 3), 1: (0, 1)}),
    ({"startingOffsets": "earliest", "minPartitions": 4}, {0: (0, 3), 1: (0, 1)}),
]


def test_starts(cluster: Cluster, t: None) -> None:
    for options, expected in STARTS:
        query = StreamQuery(cluster, **options)
        found = [value.decode() for rows in iter(query.trigger, []) for _, value in rows]
        assert sorted(found) == sorted(v for p, bounds in expected.items() for v in numbers(p, *bounds)), options


def test_a_restart_continues_at_the_checkpoint_regardless_of_start_options(
    spark: SparkSession, cluster: Cluster, log: ClientLog, t: None, checkpoint: Path
) -> None:
    Run(read_stream(spark, cluster, subscribe="t", startingOffsets="earliest"), checkpoint).to_end()
    fill(log, "t", [1, 0], first=3)
    for start in ("latest", "earliest"):
        run = Run(read_stream(spark, cluster, subscribe="t", startingOffsets=start), checkpoint).to_end()
        assert run.all == ({0: ["0/3"]} if start == "latest" else {})


@pytest.mark.parametrize("starts", [("earliest", "latest"), ("latest", "earliest")])
def test_a_replayed_batch_0_keeps_its_start(
    spark: SparkSession, cluster: Cluster, log: ClientLog, t: None, checkpoint: Path, starts: tuple[str, str]
) -> None:
    """Killed between the offsets of batch 0 and its commit; meanwhile the topic gets more records."""

    def die(number: int) -> None:
        raise RuntimeError("killed")

    with fails("killed"):
        Run(read_stream(spark, cluster, subscribe="t", startingOffsets=starts[0]), checkpoint, die).to_end()
    fill(log, "t", [2, 1], first=3)
    run = Run(read_stream(spark, cluster, subscribe="t", startingOffsets=starts[1]), checkpoint).to_end()
    if starts[0] == "earliest":
        assert run.batches[0] == (0, {0: numbers(0, 3), 1: ["1/0"]})
        assert run.all == {0: numbers(0, 5), 1: ["1/0", "1/3"]}
    else:
        assert run.all == {0: ["0/3", "0/4"], 1: ["1/3"]}


def test_batch_0_is_replayed_though_its_start_does_not_exist_any_more(
    spark: SparkSession, cluster: Cluster, log: ClientLog, t: None, checkpoint: Path
) -> None:
    options = {"subscribe": "t", "startingOffsets": '{"t":{"0":1,"1":-2}}'}
    first = Run(read_stream(spark, cluster, **options), checkpoint).to_end()
    assert first.all == {0: numbers(0, 1, 3), 1: numbers(1, 1)}
    uncommit(checkpoint, 0)
    add_partitions(cluster, "t", 3)
    fill(log, "t", [0, 0, 1], first=20)
    again = Run(read_stream(spark, cluster, **options), checkpoint).to_end()
    assert again.batches == [*first.batches, (1, {2: ["2/20"]})]
    with fails("Partitions specified for start offsets don't match"):
        Run(read_stream(spark, cluster, **options), checkpoint / "new").to_end()


def test_an_empty_pattern_waits_for_its_topics(
    spark: SparkSession, cluster: Cluster, log: ClientLog, checkpoint: Path
) -> None:
    run = Run(read_stream(spark, cluster, subscribePattern="^news"), checkpoint)
    with running(run.start()) as query:
        query.processAllAvailable()
        make(cluster, "news.eu")
        append(log, "news.eu", "first of a new topic")  # from its earliest offset, although the query starts at latest
        query.processAllAvailable()
        assert run.all == {0: ["first of a new topic"]}


# --- limits and triggers --------------------------------------------------------------------------------------------


def test_the_rate_limit_is_shared_in_proportion(
    spark: SparkSession, cluster: Cluster, log: ClientLog, checkpoint: Path
) -> None:
    make(cluster, "t", 3)
    for partition, count in enumerate((12, 4)):
        append(log, "t", *numbers(partition, count), partition=partition)
    options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 8}
    run = Run(read_stream(spark, cluster, **options), checkpoint).to_end()
    assert run.batches == [
        (0, {0: numbers(0, 6), 1: numbers(1, 2)}),
        (1, {0: numbers(0, 6, 12), 1: numbers(1, 2, 4)}),
    ]


@pytest.mark.slow
def test_available_now_fixes_its_end(
    spark: SparkSession, cluster: Cluster, log: ClientLog, t: None, checkpoint: Path
) -> None:
    def more(number: int) -> None:
        append(log, "t", f"late {number}", partition=0)
        if number == 0:
            add_partitions(cluster, "t", 3)
            append(log, "t", "late", partition=2)

    options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 2}
    first = Run(read_stream(spark, cluster, **options), checkpoint, more).to_end()
    assert len(first.batches) > 1
    assert first.all == {0: numbers(0, 3), 1: numbers(1, 1)}
    late = [f"late {number}" for number, _ in first.batches]
    assert Run(read_stream(spark, cluster, **options), checkpoint).to_end().all == {0: late, 2: ["late"]}


def test_trigger_once_ignores_limits(spark: SparkSession, cluster: Cluster, t: None, checkpoint: Path) -> None:
    options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 1}
    run = Run(read_stream(spark, cluster, **options), checkpoint).to_end(once=True)
    assert run.batches == [(0, {0: numbers(0, 3), 1: numbers(1, 1)})]


def test_a_minimum_of_offsets_waits_until_its_maximum_delay(
    spark: SparkSession, cluster: Cluster, log: ClientLog, t: None, checkpoint: Path
) -> None:
    options = {"subscribe": "t", "startingOffsets": "earliest", "minOffsetsPerTrigger": 5, "maxTriggerDelay": "10m"}
    run = Run(read_stream(spark, cluster, **options), checkpoint)
    with running(run.start()) as query:
        query.processAllAvailable()
        assert run.all == {0: numbers(0, 3), 1: ["1/0"]}  # the first batch always fires
        fill(log, "t", [2, 2], first=10)
        query.processAllAvailable()
        assert len(run.batches) == 1
        fill(log, "t", [1, 0], first=12)
        query.processAllAvailable()
        assert run.batches[1:] == [(1, {0: numbers(0, 10, 13), 1: numbers(1, 10, 12)})]
    options["maxTriggerDelay"] = "1s"
    run = Run(read_stream(spark, cluster, **options), checkpoint)
    with running(run.start()) as query:
        query.processAllAvailable()
        fill(log, "t", [1, 0], first=20)
        deadline = time.monotonic() + 60
        while not run.all and time.monotonic() < deadline:
            query.processAllAvailable()
        assert run.all == {0: ["0/20"]}


# --- loss -----------------------------------------------------------------------------------------------------------


def read_once(spark: SparkSession, cluster: Cluster, checkpoint: Path, **options: Any) -> Run:
    return Run(read_stream(spark, cluster, subscribe="t", **options), checkpoint).to_end()


def test_aged_out_records(spark: SparkSession, cluster: Cluster, log: ClientLog, t: None, checkpoint: Path) -> None:
    read_once(spark, cluster, checkpoint, startingOffsets="earliest")
    fill(log, "t", [4, 0], first=3)
    delete_records(cluster, {TopicPartition("t", 0): 5})
    with fails("data may have been lost", "offset [3, 5) for topic partition t-0", "failOnDataLoss to false"):
        read_once(spark, cluster, checkpoint)
    assert read_once(spark, cluster, checkpoint, failOnDataLoss=False).all == {0: numbers(0, 5, 7)}


def test_a_deleted_topic(spark: SparkSession, cluster: Cluster, log: ClientLog, t: None, checkpoint: Path) -> None:
    make(cluster, "u")
    append(log, "u", "u")
    options = {"subscribe": "t,u", "startingOffsets": "earliest"}
    Run(read_stream(spark, cluster, **options), checkpoint).to_end()
    delete_topic(cluster, "u")
    fill(log, "t", [1, 0], first=3)
    kept = checkpoint.with_name("kept")
    shutil.copytree(checkpoint, kept)
    with fails("data may have been lost", "Partitions Set(u-0) have been deleted"):
        Run(read_stream(spark, cluster, **options), kept).to_end()
    run = Run(read_stream(spark, cluster, **options, failOnDataLoss=False), checkpoint).to_end()
    assert run.all == {0: ["0/3"]}


def test_a_recreated_topic(spark: SparkSession, cluster: Cluster, log: ClientLog, t: None, checkpoint: Path) -> None:
    """The new topic has grown beyond the old offset: offsets alone would not reveal the recreation."""
    read_once(spark, cluster, checkpoint, startingOffsets="earliest")
    delete_topic(cluster, "t")
    make(cluster, "t", 2)
    append(log, "t", *(f"other {n}" for n in range(5)))
    kept = checkpoint.with_name("kept")
    shutil.copytree(checkpoint, kept)
    with fails("data may have been lost", "t-0 offset was changed from 3 to 5"):
        read_once(spark, cluster, kept)
    assert read_once(spark, cluster, checkpoint, failOnDataLoss=False).all == {0: [f"other {n}" for n in range(5)]}
    append(log, "t", "next")
    assert read_once(spark, cluster, checkpoint, failOnDataLoss=False).all == {0: ["next"]}


def test_a_topic_deleted_between_two_batches(
    spark: SparkSession, cluster: Cluster, log: ClientLog, t: None, checkpoint: Path
) -> None:
    run = Run(read_stream(spark, cluster, subscribe="t", startingOffsets="earliest"), checkpoint)
    with running(run.start()) as query:
        query.processAllAvailable()
        delete_topic(cluster, "t")
        with fails("Partitions Set(t-0, t-1) have been deleted"):
            query.awaitTermination()
    assert run.all == {0: numbers(0, 3), 1: ["1/0"]}


# --- committed offsets and progress ---------------------------------------------------------------------------------


def test_a_group_gets_the_end_offsets(
    spark: SparkSession, cluster: Cluster, log: ClientLog, t: None, checkpoint: Path
) -> None:
    options = {"subscribe": "t", "startingOffsets": "earliest", "kafka.group.id": "g", "maxOffsetsPerTrigger": 2}
    frame = read_stream(spark, cluster, **options)
    Run(frame, checkpoint).to_end()
    assert committed_offsets(cluster.store, "g") == {TopicPartition("t", 0): 3, TopicPartition("t", 1): 1}
    fill(log, "t", [1, 0], first=3)
    assert [row.lag for row in group_lag(cluster, "g")] == [1, 0], "its lag shows like any other group's"
    with running(Run(frame, checkpoint).start()) as query:
        query.processAllAvailable()
        deadline = time.monotonic() + 60
        while committed_offsets(cluster.store, "g")[TopicPartition("t", 0)] != 4:
            assert time.monotonic() < deadline
            query.processAllAvailable()


def test_progress_shows_offsets_as_kafkas_source_does(
    spark: SparkSession, cluster: Cluster, log: ClientLog, t: None, checkpoint: Path
) -> None:
    run = Run(read_stream(spark, cluster, subscribe="t", startingOffsets="earliest"), checkpoint)
    with running(run.start()) as query:
        query.processAllAvailable()
        progress = [found for found in query.recentProgress if found["numInputRows"]]
        [source] = progress[0]["sources"]
        for position, expected in [("endOffset", {"0": 3, "1": 1}), ("latestOffset", {"0": 3, "1": 1})]:
            shown = source[position] if isinstance(source[position], dict) else json.loads(source[position])
            assert shown["t"] == expected
            assert all(key == "t" or key.startswith("@") for key in shown)
        assert str(cluster.store.address) not in json.dumps(progress[0], default=str)
