"""read_topic: all columns of the source, ranges, times, many segments and log dirs."""

import contextlib
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_log import read_topic
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.errors import InvalidOptionError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from spark_log.ids import TopicPartition
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import add_partitions, alter_configs
from tests.support.records import table
from tests.support.spark import assert_same_rows
from tests.support.topics import append, fails, fill, make, read


def check_equal(spark: SparkSession, cluster: Cluster, topic: str = "t") -> None:
    ours = read(spark, cluster, subscribe=topic, includeHeaders=True)
    native = read_topic(spark, str(cluster.store.address), topic, include_headers=True)
    assert_same_rows(native, ours)


def test_read_topic_of_an_empty_topic(spark: SparkSession, cluster: Cluster) -> None:
    make(cluster, "t", 2)
    check_equal(spark, cluster)
    assert read_topic(spark, cluster, "t").dtypes == read(spark, cluster, subscribe="t").dtypes
    with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere'"):
        read_topic(spark, cluster, "nowhere")


def test_read_topic_equals_the_source(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    """Sealed segments and tail, headers, a log start inside a segment, both timestamp types in one partition."""
    topic = make(cluster, "t", 3, inline_max_bytes="2000")
    fill(log, topic, [3, 2])
    log.append(topic, [Records(0, table("x" * 5_000, "y", key=b"k", headers=[("h", b"1"), ("h", b"")]))])
    check_equal(spark, cluster)
    log.seal(topic, [0, 1])
    check_equal(spark, cluster)  # sealed segments only
    topic = alter_configs(cluster, "t", {"message.timestamp.type": "LogAppendTime"})
    append(log, topic, "z" * 5_000, partition=0)
    append(log, topic, "tail", partition=0)
    topic = alter_configs(cluster, "t", {"message.timestamp.type": None})
    append(log, topic, "create time again" * 500, partition=0)
    append(log, topic, "and a tail", partition=1, headers=[("a", b"b")])
    delete_records(cluster, {TopicPartition("t", 0): 4, TopicPartition("t", 1): 1})
    check_equal(spark, cluster)
    kinds = read(spark, cluster, subscribe="t", columns="partition,offset,timestampType")
    assert {row.timestampType for row in kinds.where("partition = 0").collect()} == {0, 1}
    add_partitions(cluster, "t", 5)
    append(log, "t", "new partition", partition=4)
    check_equal(spark, cluster)


@pytest.fixture
def ranged(cluster: Cluster, log: ClientLog) -> Topic:
    """Partition 0 has a file with the offsets 0 to 9, and a tail with 10 to 14; the timestamps are 1000 + the offset in
    seconds. Partition 1 has a file with one record, of the second 2000.
    """
    topic = make(cluster, "t", 2, retention_ms="-1")
    for number in range(15):
        if number == 10:
            log.seal(topic, [0])
        append(log, topic, f"v{number}", timestamp_ms=1_000 * (1_000 + number))
    append(log, topic, "other", partition=1, timestamp_ms=2_000_000)
    log.seal(topic, [1])
    return topic


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ({0: (3, 7)}, [3, 4, 5, 6]),
        ({0: (8, 12)}, [8, 9, 10, 11]),
        ({0: (-2, 2)}, [0, 1]),
        ({0: (13, -1)}, [13, 14]),
        ({0: (4, 4)}, []),
        ({}, []),
    ],
)
def test_read_topic_reads_a_range_of_offsets(
    spark: SparkSession, cluster: Cluster, ranged: Topic, offsets: dict[int, tuple[int, int]], expected: list[int]
) -> None:
    rows = read_topic(spark, cluster, "t", offsets=offsets)
    assert sorted(row.offset for row in rows.collect()) == expected
    assert {row.partition for row in rows.collect()} <= {0}
    assert rows.dtypes == read(spark, cluster, subscribe="t").dtypes


def test_read_topic_reads_records_since_a_time(spark: SparkSession, cluster: Cluster, ranged: Topic) -> None:
    since = datetime.fromtimestamp(1_008, UTC)
    rows = read_topic(spark, cluster, "t", since=since)
    assert sorted((row.partition, row.offset) for row in rows.collect()) == [(0, n) for n in range(8, 15)] + [(1, 0)]
    rows = read_topic(spark, cluster, "t", since=1_500_000)
    assert [bytes(row.value) for row in rows.collect()] == [b"other"]
    assert "_segments/0" not in "".join(rows.inputFiles()), "its only file has no such record"
    later = read_topic(spark, cluster, "t", since=since.replace(microsecond=400))
    assert min(row.offset for row in later.where("partition = 0").collect()) == 9
    both = read_topic(spark, cluster, "t", since=since, offsets={0: (0, 10)})
    assert sorted(row.offset for row in both.collect()) == [8, 9]


@pytest.mark.parametrize(
    ("limits", "error", "message"),
    [
        ({"offsets": {0: (0, 16)}}, OffsetOutOfRangeError, "high watermark 15"),
        ({"offsets": {0: (5, 4)}}, OffsetOutOfRangeError, r"\[5, 4\)"),
        ({"offsets": {2: (0, 1)}}, UnknownTopicOrPartitionError, "t-2"),
        ({"offsets": {0: 5}}, InvalidOptionError, "expected"),
        ({"since": "yesterday"}, InvalidOptionError, "expected a datetime"),
    ],
)
def test_read_topic_refuses_limits_that_it_cannot_read(
    spark: SparkSession, cluster: Cluster, ranged: Topic, limits: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_topic(spark, cluster, "t", **limits)


@pytest.mark.parametrize("name", ["logs*", "logs[1]{2}?"])
def test_read_topic_takes_no_path_for_a_pattern(spark: SparkSession, tmp_path: Path, name: str) -> None:
    with Cluster.init(str(tmp_path / name)) as cluster, contextlib.closing(ClientLog(cluster)) as log:
        append(log, make(cluster, "t", inline_max_bytes="0"), "a")
        shutil.copytree(tmp_path / name, tmp_path / "logs-copy")
        assert read_topic(spark, cluster, "t").count() == 1


def test_read_topic_of_many_segments_and_of_equal_sizes(
    spark: SparkSession, cluster: Cluster, log: ClientLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cases that need a join with the files' facts: too many files for an expression, or two of one size."""
    topic = make(cluster, "t", 2, inline_max_bytes="0")
    for number in range(6):
        append(log, topic, f"value {number} " * (number % 3 + 1), partition=number % 2)
    sizes = [path.stat().st_size for path in Path(cluster.store.address.folder).rglob("_segments/*/*.parquet")]
    assert len(sizes) == 6 and len(set(sizes)) < 6
    check_equal(spark, cluster)
    append(log, topic, "another size altogether", partition=0)
    monkeypatch.setattr("spark_log.log.segments.segment_scan._IN_EXPRESSION_MAX", 1)
    check_equal(spark, cluster)


def test_read_topic_over_several_log_dirs(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    from spark_log.cluster.cluster import FIRST_BROKER

    cluster.add_log_dir(FIRST_BROKER, str(tmp_path / "second"))
    topic = make(cluster, "t", 4, inline_max_bytes="0")
    fill(log, topic, [2, 1, 2, 1])
    assert len({path.parents[2] for path in tmp_path.rglob("*.parquet") if "_segments" in path.parts}) == 2
    check_equal(spark, cluster)


@pytest.mark.parametrize("damage", ["empty", "another segment", "missing"])
def test_a_segment_that_differs_from_its_metadata_is_an_error(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path, damage: str
) -> None:
    topic = make(cluster, "t", 1, inline_max_bytes="0")
    append(log, topic, "first", "second")
    append(log, topic, "third")
    files = [path for path in tmp_path.rglob("*.parquet") if "_segments" in path.parts]
    small, large = sorted(files, key=lambda path: path.stat().st_size)
    if damage == "empty":
        large.write_bytes(b"")
    elif damage == "missing":
        large.unlink()
    else:
        large.write_bytes(small.read_bytes())
    with pytest.raises(Exception, match=large.name):
        read(spark, cluster, subscribe="t").collect()
    with pytest.raises(Exception, match=large.name):
        read_topic(spark, cluster, "t").collect()


def test_a_flipped_bit_is_an_error_in_both_paths(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    topic = make(cluster, "t", 1, inline_max_bytes="0", compression_type="none")
    log.append(topic, [Records(0, table(*(f"{n:05}" * 20 for n in range(500))))])
    [file] = [path for path in tmp_path.rglob("*.parquet") if "_segments" in path.parts]
    whole = file.read_bytes()
    place = whole.index(b"00250" * 20) + 50
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
    with fails("t"):
        read(spark, cluster, subscribe="t").collect()
    with fails("checksum"):
        read_topic(spark, cluster, "t").collect()
    file.write_bytes(whole)
    check_equal(spark, cluster)
