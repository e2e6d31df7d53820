"""A stream with maxBytesPerTrigger reads whole segments, each record once, also after a restart."""

import itertools

import pytest

from spark_log.spark.datasource.read import read_planner
from tests.support.topics import append, make

VALUE = "x" * 1_000


@pytest.fixture
def query(cluster, log, stream_query):
    """A function that starts a query over 10 segments of 1 to 2 kB in each of two partitions."""
    # a machine that takes 3 s for the appends would seal the tails, which are read as one segment each
    make(cluster, "t", 2, compression_type="none", delta_max_lag_ms="-1")
    for partition, n in itertools.product(range(2), range(10)):
        append(log, "t", f"{partition} {n} {VALUE}", partition=partition)
    return stream_query


def values(rows):
    return [value.decode().split()[:2] for _, value in rows]


EVERY = sorted([str(partition), str(n)] for partition, n in itertools.product(range(2), range(10)))


def test_batches_have_whole_segments_and_each_record_is_read_once(query):
    reading = query(maxBytesPerTrigger=8_000)
    batches = [values(reading.trigger()) for _ in range(2)]
    assert all({partition for partition, _ in batch} == {"0", "1"} and len(batch) < 8 for batch in batches)
    reading.restart(maxBytesPerTrigger="1KiB")
    batches.append(values(reading.trigger()))
    assert len(batches[-1]) == 1, "one segment at least"
    reading.restart(maxOffsetsPerTrigger=2, maxBytesPerTrigger="1MiB")
    batches.append(values(reading.trigger()))
    assert len(batches[-1]) == 2, "the smaller one of both limits"
    reading.restart(maxOffsetsPerTrigger=1_000, maxBytesPerTrigger="1MiB")
    batches.append(values(reading.trigger()))
    assert sorted(itertools.chain(*batches)) == EVERY
    assert reading.trigger() == []


def test_a_backlog_of_many_segments_is_read_in_parts_below_a_limit(query, monkeypatch):
    monkeypatch.setattr(read_planner, "_SEGMENTS_MIN", 3)
    monkeypatch.setattr(read_planner, "_SEGMENTS_MAX", 3)
    reading = query(maxBytesPerTrigger="1MiB")
    batches = [values(reading.trigger()) for _ in range(5)]
    assert [len(batch) for batch in batches] == [6, 6, 6, 2, 0], "three segments of each partition are listed"
    assert sorted(itertools.chain(*batches)) == EVERY
