"""`stream_topic`: the history from files, then new records, each once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_log import stream_topic
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import (
    DataLossError,
    InvalidConfigurationError,
    InvalidOptionError,
    UnknownTopicOrPartitionError,
)
from spark_log.ids import TopicPartition
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import add_partitions, alter_configs, delete_topic
from spark_log.spark.streams import topic_stream
from tests.spark.queries import configured, in_parquet
from tests.support.python_process import killed_at, run_process
from tests.support.replicas import truncate
from tests.support.s3 import S3Server
from tests.support.spark import driver_gateway
from tests.support.topics import all_stored, append, make, read

pytestmark = pytest.mark.delta

KEPT = {"retention_ms": "-1", "delta_max_lag_ms": "-1"}


@pytest.fixture
def query(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Callable[..., DataFrame]:
    """Run the stream up to the present, from where the last run ended; returns all that its runs have written."""

    def run(topic: str = "t", **options: Any) -> DataFrame:
        return in_parquet(stream_topic(spark, cluster, topic, history=str(tmp_path / "history"), **options), tmp_path)

    return run


def check_equal(spark: SparkSession, cluster: Cluster, found: DataFrame, **options: Any) -> None:
    wanted = read(spark, cluster, subscribe="t", **options).select(*found.columns)
    order = ["partition", "offset"]
    assert found.orderBy(order).collect() == wanted.orderBy(order).collect()


@pytest.mark.slow
def test_the_stream_has_each_record_once_across_restarts(
    spark: SparkSession, cluster: Cluster, log: ClientLog, query: Callable[..., DataFrame]
) -> None:
    """Files, tails, a log start inside a file, both timestamp types, headers, restarts, new partitions, a merge."""
    topic = make(cluster, "t", 3, **KEPT)
    append(log, topic, "a", "b", "c", headers=[("h", b"1"), ("h", b"")])
    log.seal(topic, [0])
    append(log, topic, "d")
    topic = alter_configs(cluster, "t", {"message.timestamp.type": "LogAppendTime"})
    append(log, topic, "e", partition=1)
    log.seal(topic, [0, 1])
    append(log, topic, "tail", partition=1)
    delete_records(cluster, {TopicPartition("t", 0): 1})
    check_equal(spark, cluster, query(include_headers=True, max_files_per_trigger=1), includeHeaders=True)
    append(log, topic, "f", "g")
    append(log, topic, "first of its partition", partition=2)
    add_partitions(cluster, "t", 4)
    append(log, "t", "in a new partition", partition=3)
    log.seal(topic, [0, 1, 2])
    for _ in run_tasks(cluster, ["merge"]):
        pass
    check_equal(spark, cluster, query(include_headers=True), includeHeaders=True)
    append(log, topic, "h")
    check_equal(spark, cluster, query(include_headers=True), includeHeaders=True)


def test_files_above_a_tail_are_not_in_the_history(
    spark: SparkSession, cluster: Cluster, log: ClientLog, query: Callable[..., DataFrame]
) -> None:
    topic = make(cluster, "t", inline_max_bytes="1000", **KEPT)
    append(log, topic, "a file " * 1_000)
    append(log, topic, "tail")
    append(log, topic, "a file above the tail " * 1_000)
    check_equal(spark, cluster, query())
    log.seal(topic, [0])
    check_equal(spark, cluster, query())


def test_an_empty_topic_is_streamed_from_its_first_record(
    spark: SparkSession, cluster: Cluster, log: ClientLog, query: Callable[..., DataFrame]
) -> None:
    make(cluster, "t", 2, **KEPT)
    assert query().collect() == []
    append(log, "t", "first")
    check_equal(spark, cluster, query())


def test_a_stream_that_ends_within_the_history_continues_there(
    spark: SparkSession, cluster: Cluster, log: ClientLog, query: Callable[..., DataFrame], tmp_path: Path
) -> None:
    topic = make(cluster, "t", inline_max_bytes="0", **KEPT)
    for number in range(5):
        append(log, topic, f"file {number}")
    frame = stream_topic(spark, cluster, "t", history=str(tmp_path / "history"), max_files_per_trigger=1)
    batches: list[int] = []

    def fail_in_the_third(batch: DataFrame, number: int) -> None:
        batches.append(batch.count())
        assert number < 2

    options = {"checkpointLocation": str(tmp_path / "checkpoint")}
    with pytest.raises(StreamingQueryException):
        frame.writeStream.foreachBatch(fail_in_the_third).options(**options).start().awaitTermination(120)
    assert batches == [1, 1, 1]
    append(log, topic, "later")
    rows: list[str] = []
    again = stream_topic(spark, cluster, "t", history=str(tmp_path / "history"))
    again = again.selectExpr("string(value) AS text")
    writer = again.writeStream.foreachBatch(lambda batch, _: rows.extend(row.text for row in batch.collect()))
    assert writer.options(**options).trigger(availableNow=True).start().awaitTermination(120)
    assert sorted(rows) == ["file 2", "file 3", "file 4", "later"]


def test_a_history_keeps_its_topic_and_columns(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    make(cluster, "t", **KEPT), make(cluster, "other", **KEPT)
    append(log, "t", "a")
    history = str(tmp_path / "history")
    stream_topic(spark, cluster, "t", history=history)
    with pytest.raises(InvalidOptionError, match="topic 't', expected 'other'"):
        stream_topic(spark, cluster, "other", history=history)
    with pytest.raises(InvalidOptionError, match="include_headers False, expected True"):
        stream_topic(spark, cluster, "t", history=history, include_headers=True)
    with pytest.raises(UnknownTopicOrPartitionError):
        stream_topic(spark, cluster, "nowhere", history=str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    spark.range(1).write.format("delta").save(str(tmp_path / "foreign"))
    with pytest.raises(InvalidOptionError, match="has not written"):
        stream_topic(spark, cluster, "t", history=str(tmp_path / "foreign"))
    (tmp_path / "foreign" / "_delta_log" / f"{0:020d}.json").rename(
        tmp_path / "foreign" / "_delta_log" / f"{1:020d}.json"
    )
    with pytest.raises(InvalidOptionError, match="has not written"):
        stream_topic(spark, cluster, "t", history=str(tmp_path / "foreign"))
    with (
        configured(spark, "spark.sql.files.ignoreMissingFiles", "true"),
        pytest.raises(InvalidConfigurationError, match="ignoreMissingFiles"),
    ):
        stream_topic(spark, cluster, "t", history=history)


def test_of_two_processes_that_begin_a_history_the_second_uses_that_of_the_first(
    spark: SparkSession, cluster: Cluster, log: ClientLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = make(cluster, "t", **KEPT)
    history = str(tmp_path / "history")
    create = topic_stream._create

    def create_after_another(*arguments: Any) -> None:
        monkeypatch.undo()
        stream_topic(spark, cluster, "t", history=history)
        append(log, topic, "a")
        log.seal(topic, [0])
        create(*arguments)

    monkeypatch.setattr(topic_stream, "_create", create_after_another)
    stream_topic(spark, cluster, "t", history=history)
    commits = list(Path(history, "_delta_log").glob("*.json"))
    assert len(commits) == 1
    assert '"add"' not in commits[0].read_text()


DRIVER = """
import sys
from spark_log import stream_topic
from spark_log.spark.streams import TopicOutput, write_stream
from tests.support.spark import connect_driver

address, folder, *gateway = sys.argv[1:]
frame = stream_topic(
    connect_driver(*gateway), address, "t", history=f"{folder}/history", max_files_per_trigger=1
)
outputs = [TopicOutput(address, name) for name in ("out", "copy")]
query = write_stream(frame.select("value"), outputs, checkpoint=f"{folder}/checkpoint", trigger="available-now")
query.awaitTermination()
"""


@pytest.mark.slow
def test_each_record_is_streamed_once_when_the_driver_is_killed_around_the_making_of_the_history(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    """The topic has a new file after each kill: the history is the same from its commit on, and not before it."""
    topic = make(cluster, "t", inline_max_bytes="0", **KEPT)
    make(cluster, "out", **KEPT), make(cluster, "copy", **KEPT)
    append(log, topic, "a")
    commit = tmp_path / "history" / "_delta_log" / f"{0:020d}.json"
    with driver_gateway(spark) as place:
        driver = ("-c", DRIVER, cluster.store.address, tmp_path, *place)
        killed_at("stream.history-planned", *driver)
        assert not commit.exists() and not (tmp_path / "checkpoint").exists()
        commit.parent.mkdir(parents=True)
        left = commit.parent / f".{commit.name}-0123456789ab.tmp"  # as a killed process leaves it
        left.write_text('{"commitInfo":')
        append(log, topic, "b")
        killed_at("stream.history-written", *driver)
        written = commit.read_text()
        assert written.count('{"add"') == 2 and not (tmp_path / "checkpoint").exists()
        append(log, topic, "c")
        killed_at("append.decided", *driver)
        assert all_stored(cluster, "out") == []
        append(log, topic, "d")
        killed_at("append.committed:2", *driver)
        assert all_stored(cluster, "out") == ["a", "b", "c", "d"]
        append(log, topic, "e")
        done = run_process(*driver)
    assert done.returncode == 0, done.stderr[-5000:]
    assert all_stored(cluster, "out") == all_stored(cluster, "copy") == ["a", "b", "c", "d", "e"]
    assert commit.read_text() == written


@pytest.mark.parametrize("obstore", [True, False])
def test_a_history_in_s3_is_that_of_the_first_process(
    cluster: Cluster, log: ClientLog, monkeypatch: pytest.MonkeyPatch, s3_server: S3Server, obstore: bool
) -> None:
    """Both processes have found no history. Without obstore, the second finds that of the first before it writes."""
    topic = make(cluster, "t", inline_max_bytes="0", **KEPT)
    monkeypatch.setattr(topic_stream, "check_file_systems", lambda *_: None)  # the tests have no JARs of S3
    if not obstore:
        monkeypatch.setattr("spark_log.cluster.log_dir.can_create", lambda _uri: False)
    folder = LogDir(s3_server.uri(f"{uuid4().hex}/history"))
    snapshots = []
    for value in ("a", "b"):
        append(log, topic, value)
        snapshots.append(topic_stream._snapshot(cluster, "t", False, False, None))
    sizes = LogDir.sizes
    if obstore:  # the conditional put decides, not the look before it
        monkeypatch.setattr(LogDir, "sizes", lambda self, relatives: [None for _ in relatives])
    for snapshot in snapshots:
        topic_stream._create(None, folder, snapshot)  # type: ignore[arg-type]
    monkeypatch.setattr(LogDir, "sizes", sizes)
    commit = topic_stream._read(folder)
    assert commit is not None
    facts = topic_stream._History.from_json(commit["metaData"]["configuration"]["spark-log.history"])
    assert [snapshot.facts.ranges for snapshot in snapshots] == [{0: (0, 1)}, {0: (0, 2)}]
    assert facts == snapshots[0].facts


def test_a_file_that_is_gone_ends_the_query_with_its_name(
    cluster: Cluster, log: ClientLog, query: Callable[..., DataFrame], tmp_path: Path, spark: SparkSession
) -> None:
    topic = make(cluster, "t", inline_max_bytes="0", **KEPT)
    append(log, topic, "a")
    stream_topic(spark, cluster, "t", history=str(tmp_path / "history"))
    (file,) = Path(cluster.store.address.folder).rglob("_segments/*/*.parquet")
    shutil.move(file, tmp_path / "away")
    with pytest.raises(StreamingQueryException, match=file.name):
        query()


def test_a_query_whose_history_was_lost_does_not_continue_with_another_one(
    cluster: Cluster, log: ClientLog, query: Callable[..., DataFrame], tmp_path: Path
) -> None:
    append(log, make(cluster, "t", inline_max_bytes="0", **KEPT), "a")
    query()
    shutil.rmtree(tmp_path / "history")
    append(log, "t", "b")
    with pytest.raises(StreamingQueryException, match="DELTA"):
        query()


def test_a_history_of_records_that_were_truncated_since_ends_the_query(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    """Later records have offsets of the history: neither they nor those of the history would be read by a new one."""
    topic = make(cluster, "t", inline_max_bytes="0", **KEPT)
    append(log, topic, "a"), append(log, topic, "b"), append(log, topic, "c")
    history = str(tmp_path / "history")
    frame = stream_topic(spark, cluster, "t", history=history)
    truncate(cluster, "t", 1)
    append(log, topic, "d"), append(log, topic, "e"), append(log, topic, "f")
    with pytest.raises(StreamingQueryException, match="lost by an unclean leader election"):
        in_parquet(frame, tmp_path)
    with pytest.raises(DataLossError, match=r"t-0 up to offset 3, .* from offset 1 on .* new checkpoint and history"):
        stream_topic(spark, cluster, "t", history=history)
    again = in_parquet(stream_topic(spark, cluster, "t", history=str(tmp_path / "new")), tmp_path / "again")
    assert sorted(bytes(row.value) for row in again.collect()) == [
        b"a", b"d", b"e", b"f",
    ]  # fmt: skip


def test_a_history_of_a_topic_that_was_created_again_ends_the_query(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    append(log, make(cluster, "t", inline_max_bytes="0", **KEPT), "a")
    history = str(tmp_path / "history")
    frame = stream_topic(spark, cluster, "t", history=history)
    delete_topic(cluster, "t")
    append(log, make(cluster, "t", inline_max_bytes="0", **KEPT), "b")
    append(log, "t", "c")
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        in_parquet(frame, tmp_path)
    with pytest.raises(InvalidOptionError, match=r"topic_uuid .* use another folder, and a new checkpoint"):
        stream_topic(spark, cluster, "t", history=history)


def test_a_history_of_an_older_version_has_no_epochs(
    spark: SparkSession, cluster: Cluster, log: ClientLog, query: Callable[..., DataFrame], tmp_path: Path
) -> None:
    append(log, make(cluster, "t", inline_max_bytes="0", **KEPT), "a")
    stream_topic(spark, cluster, "t", history=str(tmp_path / "history"))
    (commit,) = (tmp_path / "history" / "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    configuration = actions[2]["metaData"]["configuration"]
    facts = json.loads(configuration["spark-log.history"])
    assert facts.pop("epochs") == {"0": 0}
    configuration["spark-log.history"] = json.dumps(facts)
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)
    append(log, "t", "b")
    check_equal(spark, cluster, query())


ROWS = {"value_format": "json", "value_schema": "item STRING, price DOUBLE", **KEPT}


def test_typed_columns_are_streamed(
    spark: SparkSession, cluster: Cluster, log: ClientLog, query: Callable[..., DataFrame]
) -> None:
    topic = make(cluster, "t", **ROWS)
    append(log, topic, '{"item": "a", "price": 1.5}', "bad")
    log.seal(topic, [0])
    append(log, topic, '{"item": "tail", "price": 2.5}')
    rows = query(record=True).selectExpr("record.item", "record.price", "record_error IS NULL AS good").collect()
    assert sorted((row.item or "", row.price or 0.0, row.good) for row in rows) == [
        ("", 0.0, False), ("a", 1.5, True), ("tail", 2.5, True),
    ]  # fmt: skip


def test_typed_columns_that_files_lack_are_refused(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    topic = make(cluster, "t", **KEPT)
    append(log, topic, '{"item": "a"}')
    log.seal(topic, [0])
    with pytest.raises(InvalidConfigurationError, match="no typed columns"):
        stream_topic(spark, cluster, "t", history=str(tmp_path / "history"), record=True)
    alter_configs(cluster, "t", {"value.format": "json", "value.schema": "item STRING"})
    with pytest.raises(InvalidConfigurationError, match="spark-log maintenance columns --topic t"):
        stream_topic(spark, cluster, "t", history=str(tmp_path / "history"), record=True)
