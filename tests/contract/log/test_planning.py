"""The cost of a read plan depends on the range that it reads, not on the length of the log."""

import json
import random

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.log import Records
from spark_log.log.segments import plan as planner
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import NOON_MS, read_all, table

SEGMENTS = 5_000


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def cluster(request, tmp_path_factory):
    """One cluster of this module on each store."""
    folder = tmp_path_factory.mktemp("planning")
    address = str(folder / "cluster")
    if request.param == "postgres":
        address = request.getfixturevalue("postgres_server").create_prepared_database()
    with Cluster.init(address, log_dir=str(folder / "log-dir")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def long_topic(cluster):
    """A topic with 5,000 segments of 10 records in each of two partitions: rows without files."""
    topic = create_topic(cluster, "long", 2)

    def insert(connection):
        common = {
            "topic_id": topic.topic_id, "record_count": 10, "bytes": 100, "timestamp_type": 0, "leader_epoch": 0,
            "codec": "none", "checksum": "", "inline": False, "change": 1,
        }  # fmt: skip
        for partition in (0, 1):
            rows = [
                {
                    **common, "partition": partition, "base_offset": 10 * n, "end_offset": 10 * n + 10,
                    "name": f"w-{n}.parquet", "min_timestamp_ms": NOON_MS + n, "max_timestamp_ms": NOON_MS + n,
                }
                for n in range(SEGMENTS)
            ]  # fmt: skip
            connection.execute(t.segment.insert(), rows)
        end = {"log_end_offset": 10 * SEGMENTS}
        for rows_of, values in ((t.partition, {"high_watermark": 10 * SEGMENTS, **end}), (t.replica, end)):
            connection.execute(rows_of.update().where(rows_of.c.topic_id == topic.topic_id).values(values))

    cluster.store.transact(insert)
    if not cluster.store.sqlite:
        with cluster.store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
    return topic


def explain(cluster, topic, ranges):
    statement = planner._OVERLAPPING["sqlite" if cluster.store.sqlite else "postgresql"]._statement
    prefix = "EXPLAIN QUERY PLAN " if cluster.store.sqlite else "EXPLAIN (ANALYZE, FORMAT TEXT) "
    parameters = {"topic_id": topic.topic_id, "ranges": json.dumps(ranges)}
    with cluster.store.snapshot() as connection:
        return "\n".join(str(row) for row in connection.execute(sa.text(f"{prefix}{statement}"), parameters))


def test_a_plan_reads_ten_of_many_thousand_segments(cluster, long_topic, log):
    plan = log.plan({TopicPartition("long", 0): OffsetRange(23_455, 23_545)})
    assert [(piece.base_offset, piece.start, piece.end) for piece in plan.slices] == [
        (base, max(base, 23_455), min(base + 10, 23_545)) for base in range(23_450, 23_550, 10)
    ]
    everything = log.plan({TopicPartition("long", n): OffsetRange(0, 10 * SEGMENTS) for n in (0, 1)})
    assert len(everything.slices) == 2 * SEGMENTS


def test_segments_are_found_by_the_primary_key(cluster, long_topic):
    found = explain(cluster, long_topic, [[0, 23_455, 23_545], [1, 7, 8]])
    if cluster.store.sqlite:
        assert "SCAN segment" not in found
        assert found.count("SEARCH segment USING") == 2
        assert "(topic_id=? AND partition=? AND base_offset<?)" in found
        assert "(topic_id=? AND partition=? AND base_offset>? AND base_offset<?)" in found
    else:
        assert "Seq Scan on segment" not in found
        assert "pk_segment" in found
        assert "Rows Removed by Filter" not in found


def test_plans_of_the_first_segment_the_last_segment_and_no_segment(cluster, long_topic, log):
    def bases(start, end):
        return [piece.base_offset for piece in log.plan({TopicPartition("long", 1): OffsetRange(start, end)}).slices]

    end = 10 * SEGMENTS
    assert bases(0, 1) == [0]
    assert bases(9, 11) == [0, 10]
    assert bases(end - 1, end) == [end - 10]
    assert bases(end, end) == bases(5, 5) == []


def test_a_timestamp_is_found_by_an_index(cluster, long_topic):
    with cluster.store.snapshot() as connection:
        found = planner.plan_time_lookups(connection, long_topic, {0: NOON_MS + 777, 1: NOON_MS + SEGMENTS})
    assert [piece.base_offset for piece in found[TopicPartition("long", 0)].slices] == [7770, 7780]
    assert found[TopicPartition("long", 1)].slices == []


def test_any_range_of_a_log_of_blobs_files_and_sealed_runs(cluster):
    """Compared with a list: ranges of offsets, and timestamps."""
    dice = random.Random(3)
    log = ClientLog(cluster)
    topic = create_topic(cluster, "t", configs={"inline.max.bytes": "1000"})
    written = []
    for number in range(60):
        values = [f"{number}.{i}" for i in range(dice.randrange(1, 4))]
        if dice.random() < 0.3:
            values.append(dice.randbytes(1000).hex())
        time_ms = NOON_MS + 1000 * number
        log.append(topic, [Records(0, table(*values, timestamp_ms=time_ms))])
        written += [(value, time_ms) for value in values]
        if dice.random() < 0.1:
            log.seal(topic, [0])
    assert [value for _, _, value in read_all(log, topic)] == [value for value, _ in written]
    for _ in range(60):
        start = dice.randrange(len(written))
        end = dice.randrange(start, len(written) + 1)
        batches = log.read({TopicPartition("t", 0): OffsetRange(start, end)})
        rows = [(row["offset"], row["value"].decode()) for batch in batches for row in batch.to_pylist()]
        assert rows == [(offset, written[offset][0]) for offset in range(start, end)]
    for _ in range(30):
        wanted = NOON_MS + dice.randrange(-1000, 61_000)
        expected = next((offset for offset, (_, time_ms) in enumerate(written) if time_ms >= wanted), None)
        assert log.offsets_for_times(topic, {0: wanted}) == {0: expected}
    log.close()
