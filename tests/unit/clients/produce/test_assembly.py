import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.clients.produce import assembly
from spark_log.clients.produce.producer_batch import TopicBatch
from spark_log.cluster.topics import Topic
from spark_log.errors import InvalidRecordError, InvalidTimestampError, MessageSizeTooLargeError
from spark_log.ids import TopicId
from spark_log.log.append.encoding import Encoding
from spark_log.log.append.partitioner import partition_of_key
from spark_log.log.records.record_limits import check
from tests.support.records import NOON_MS

HEADERS = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3)
ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=9),
        st.none() | st.binary(max_size=300),
        HEADERS,
        st.none() | st.integers(0, 2),
        st.integers(0, NOON_MS) | st.integers(NOON_MS, NOON_MS + 3_600_000),
    ),
    min_size=1,
    max_size=60,
)


def topic(partitions=3, **configs):
    overrides = {name.replace("_", "."): value for name, value in configs.items()}
    return Topic(TopicId(1), "0" * 32, "t", partitions, 1, json.dumps(overrides), 0)


def assemble(topic_batch, here, *rest):
    return assembly.assemble(topic_batch, here, Encoding.of(here), *rest)


def topic_batch_of(rows):
    topic_batch = TopicBatch("t")
    for row, (key, value, headers, partition, timestamp_ms) in enumerate(rows):
        topic_batch.keys.append(key)
        topic_batch.values.append(value)
        topic_batch.timestamps.append(timestamp_ms)
        if headers:
            topic_batch.headers[row] = headers
        if partition is not None:
            topic_batch.partitions[row] = partition
        topic_batch.bytes += (
            150 + len(key or b"") + len(value or b"") + sum(20 + len(k) * 4 + len(v) for k, v in headers)
        )
    return topic_batch


@given(ROWS, st.integers(0, 5), st.integers(0, 2000))
def test_each_record_is_once_in_its_partition_in_order(rows, first_run, run_bytes):
    found = assemble(topic_batch_of(rows), topic(), NOON_MS, first_run, run_bytes)
    assert not found.faults
    tables = [table.to_pylist() for _, table in found.parts]
    partitions = [partition for partition, _ in found.parts]
    assert partitions == sorted(set(partitions))
    seen = set()
    for row, (key, value, headers, partition, timestamp_ms) in enumerate(rows):
        batch, at = int(found.batch_of[row]), int(found.row_of[row])
        stored = tables[batch][at]
        assert (stored["key"], stored["value"]) == (key, value)
        assert [(h["key"], h["value"]) for h in stored["headers"] or []] == headers
        assert stored["timestamp"].timestamp() * 1000 == pytest.approx(timestamp_ms, abs=0.5)
        assert found.times_ms[row] == timestamp_ms
        assert (found.key_sizes[row], found.value_sizes[row]) == tuple(
            -1 if data is None else len(data) for data in (key, value)
        )
        if partition is not None:
            assert partitions[batch] == partition
        elif key is not None:
            assert partitions[batch] == partition_of_key(key, 3)
        seen.add((batch, at))
    assert len(seen) == len(rows) == sum(map(len, tables))
    for batch in range(len(tables)):
        order = [int(found.row_of[row]) for row in range(len(rows)) if found.batch_of[row] == batch]
        assert order == sorted(order), "records of a partition keep their order"


def test_null_keys_of_a_batch_go_to_one_partition():
    rows = [(None, b"x" * 100, [], None, NOON_MS)] * 8
    for first_run in range(4):
        (only,) = assemble(topic_batch_of(rows), topic(), NOON_MS, first_run, 16_384).parts
        assert only[0] == first_run % 3
    spread = assemble(topic_batch_of(rows), topic(), NOON_MS, 1, 500)
    assert sorted(partition for partition, _ in spread.parts) == [0, 1, 2] and spread.runs == 3


@given(ROWS, st.integers(0, 2), st.sampled_from([{}, {"max_message_bytes": "250"}, {"cleanup_policy": "compact"}]))
def test_faults_do_not_affect_other_records(rows, partitions_gone, configs):
    here = topic(3 - partitions_gone, message_timestamp_after_max_ms="1000", **configs)
    found = assemble(topic_batch_of(rows), here, NOON_MS, 0, 16_384)
    limits = Encoding.of(here).limits
    good = [row for row in range(len(rows)) if row not in found.faults]
    assert all(int(found.batch_of[row]) == -1 for row in found.faults)
    assert sum(table.num_rows for _, table in found.parts) == len(good)
    for _, table in found.parts:
        check(table, limits, NOON_MS)
    for row, (key, _, _, partition, timestamp_ms) in enumerate(rows):
        certain = (
            timestamp_ms > NOON_MS + 1000
            or (limits.compacted and key is None)
            or (partition is not None and partition >= here.partition_count)
        )
        assert not certain or row in found.faults


def test_faults_have_the_error_of_their_cause():
    rows = [
        (b"k", b"x" * 400, [], None, NOON_MS),
        (None, b"x", [], None, NOON_MS),
        (b"k", b"x", [], None, NOON_MS + 5000),
        (b"k", b"good", [], None, NOON_MS),
    ]
    configs = {"max_message_bytes": "300", "cleanup_policy": "compact", "message_timestamp_after_max_ms": "1000"}
    found = assemble(topic_batch_of(rows), topic(**configs), NOON_MS, 0, 16_384)
    kinds = {row: type(error) for row, error in found.faults.items()}
    assert kinds == {0: MessageSizeTooLargeError, 1: InvalidRecordError, 2: InvalidTimestampError}
    assert "max.message.bytes is 300" in str(found.faults[0])
    ((_, table),) = found.parts
    assert table.column("value").to_pylist() == [b"good"]


def test_log_append_time_is_the_store_time():
    topic_batch = topic_batch_of([(b"k", b"v", [], None, 5)])
    found = assemble(topic_batch, topic(message_timestamp_type="LogAppendTime"), NOON_MS, 0, 16_384)
    assert list(found.times_ms) == [NOON_MS]
    assert topic_batch.timestamps == array("q", [5])
