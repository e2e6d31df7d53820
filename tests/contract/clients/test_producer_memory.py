"""buffer_memory bounds the memory of a producer: completed records are freed, even while their futures are kept."""

import kafka.errors
import numpy as np
import pyarrow as pa
import pytest

from spark_log import Producer
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import NOON_MS
from tests.support.replicas import take_away
from tests.support.resources import arrow_memory, assert_only_named_files
from tests.support.waiting import LIMIT_S, wait_until

MB = 1_000_000
SLACK = 2 * MB
"""Memory besides records: encoders, responses of the store."""


def table_of(size):
    """A table of `size` bytes in records of 1,000 bytes."""
    values = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(1_000), size // 1_000, [None, pa.py_buffer(np.random.default_rng(0).bytes(size))]
    )
    rest = {name: pa.nulls(len(values), RECORD_SCHEMA.field(name).type) for name in ("key", "headers")}
    times = pa.array([NOON_MS * 1000] * len(values), pa.int64()).cast(RECORD_SCHEMA.field("timestamp").type)
    found = {"value": values.cast(pa.binary()), "timestamp": times, **rest}
    return pa.table([found[name] for name in RECORD_SCHEMA.names], schema=RECORD_SCHEMA)


@pytest.fixture
def cluster(tmp_path):
    with Cluster.init(str(tmp_path / "cluster"), log_dir=str(tmp_path / "d1")) as cluster:
        add_broker(cluster, 2, [str(tmp_path / "d2")])
        yield cluster


@pytest.fixture
def producer_of(cluster, tmp_path):
    made = []

    def make(**settings):
        made.append(Producer(cluster=str(tmp_path / "cluster"), **settings))
        return made[-1]

    yield make
    for producer in made:
        producer.close(timeout=5)


@pytest.mark.parametrize("partitions", [1, 2])
def test_acknowledged_tables_are_freed_although_their_futures_are_kept(cluster, producer_of, partitions):
    create_topic(cluster, "t", partitions)
    producer, kept = producer_of(), []
    with arrow_memory(SLACK):
        for _ in range(5):
            kept.append(producer.send_table("t", table_of(4 * MB)))
            kept[-1].get(timeout=LIMIT_S)
    assert sum(end - base for future in kept for _, base, end in future.get()) == 20_000


def test_tables_registered_in_a_transaction_are_freed_before_its_end(cluster, producer_of):
    create_topic(cluster, "t", 2)
    producer, kept = producer_of(transactional_id="t1"), []
    producer.init_transactions()
    producer.begin_transaction()
    with arrow_memory(SLACK):
        for _ in range(5):
            kept.append(producer.send_table("t", table_of(4 * MB)))
            kept[-1].get(timeout=LIMIT_S)
    producer.commit_transaction()
    assert sum(end - base for future in kept for _, base, end in future.get()) == 20_000
    assert_only_named_files(cluster)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_table_larger_than_the_buffer_occupies_no_more_than_the_buffer(cluster, producer_of, partitions):
    create_topic(cluster, "t", partitions, 2, {"min.insync.replicas": "2"})
    take_away(cluster, 2)  # so that nothing can be appended
    producer = producer_of(buffer_memory=8 * MB, max_block_ms=200, retry_backoff_ms=2_000, delivery_timeout_ms=60_000)
    with arrow_memory(8 * MB + SLACK):
        with pytest.raises(kafka.errors.KafkaTimeoutError, match="no room") as raised:
            producer.send_table("t", table_of(60 * MB))
        del raised
    producer.close(timeout=0)


def test_a_few_buffered_rows_do_not_keep_their_source_table_in_memory(cluster, producer_of):
    create_topic(cluster, "t", 1, 2, {"min.insync.replicas": "2"})
    take_away(cluster, 2)
    producer = producer_of(retry_backoff_ms=2_000, delivery_timeout_ms=60_000)
    with arrow_memory(SLACK):
        for _ in range(5):
            producer.send_table("t", table_of(8 * MB).slice(0, 10))
    producer.close(timeout=0)


def test_tables_that_could_not_be_appended_are_freed(cluster, producer_of):
    create_topic(cluster, "t", 1, 2, {"min.insync.replicas": "2"})
    take_away(cluster, 2)
    producer = producer_of(retry_backoff_ms=50, delivery_timeout_ms=300, request_timeout_ms=200, linger_ms=0)
    kept = []
    with arrow_memory(SLACK):
        for _ in range(3):
            kept.append(producer.send_table("t", table_of(4 * MB)))
            with pytest.raises(kafka.errors.KafkaError):
                kept[-1].get(timeout=LIMIT_S)
    assert_only_named_files(cluster)


def test_headers_are_not_kept_with_the_futures(cluster, producer_of):
    create_topic(cluster, "t")
    producer = producer_of()
    future = producer.send("t", b"v", headers=[("h", b"1234")])
    assert future.get(timeout=LIMIT_S).serialized_header_size == 5
    assert not future._topic_batch.headers


def test_a_waiting_partition_does_not_keep_the_records_of_the_others_in_memory(cluster, producer_of, tmp_path):
    topic = create_topic(cluster, "t", 4, configs={"inline.max.bytes": "0"})
    for log_dir in ("d1", "d2"):
        folder = tmp_path / log_dir / topic.folder / "_segments"
        folder.mkdir(parents=True)
        (folder / "0").write_text("in the place of partition 0's folder")
    producer, kept = producer_of(retry_backoff_ms=1_000), []
    with arrow_memory(5 * MB + SLACK):
        for _ in range(5):
            table = table_of(4 * MB)
            numbers = pa.array(np.arange(table.num_rows) % 4)
            kept.append(producer.send_table("t", table.append_column("partition", numbers)))
        del table
        wait_until(lambda: sum(end - base for future in kept for _, base, end in future.written()) == 15_000)
    producer.close(timeout=0)
