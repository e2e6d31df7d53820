import logging
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
from kafka.errors import IllegalStateError, KafkaTimeoutError, NotEnoughReplicasError
from kafka.future import Future
from kafka.producer.future import FutureRecordMetadata, RecordMetadata
from kafka.structs import TopicPartition

from spark_log.clients.produce.future import SendFuture, TableFuture, Written, merged
from spark_log.clients.produce.producer_batch import ProducerBatch, TopicBatch
from spark_log.cluster.topics import Topic
from spark_log.ids import TopicId

TOPIC = Topic(TopicId(1), "0" * 32, "t", 2, 1, "{}", 0)


def assembled(rows=3, kind=TopicBatch):
    """A topic batch of `rows` records, alternately in partition 0 and 1, and its batches."""
    topic_batch = kind("t")
    topic_batch.row_of, topic_batch.times_ms = np.arange(rows) // 2, np.arange(rows) + 100
    topic_batch.key_sizes, topic_batch.value_sizes = np.full(rows, -1), np.full(rows, 7)
    topic_batch.header_sizes = {0: 5}
    tables = [pa.table({"n": [0] * ((rows + 1 - p) // 2)}) for p in range(2)]
    batches = [ProducerBatch(topic_batch, p, TOPIC, p, tables[p], 10, 0.0) for p in range(2)]
    return topic_batch, batches, np.arange(rows) % 2


def test_future_has_the_class_of_kafka_python():
    future = SendFuture(TopicBatch("t"), 0)
    assert isinstance(future, FutureRecordMetadata) and isinstance(future, Future)
    assert (future.is_done, future.value, future.exception) == (False, None, None)
    assert not future.succeeded() and not future.failed() and not future.retriable()
    with pytest.raises(KafkaTimeoutError, match=r"Timeout after waiting for 0\.001 secs"):
        future.get(timeout=0.001)
    for change in (future.success, future.failure):
        with pytest.raises(IllegalStateError):
            change(None)


def test_record_metadata_has_all_nine_fields():
    topic_batch, batches, batch_of = assembled()
    futures = [SendFuture(topic_batch, row) for row in range(3)]
    topic_batch.begin(batches, batch_of, {})
    topic_batch.resolve(batches[0], 40, None)
    assert futures[0].get() == RecordMetadata("t", 0, TopicPartition("t", 0), 40, 100, None, -1, 7, 5)
    assert futures[2].get() == RecordMetadata("t", 0, TopicPartition("t", 0), 41, 102, None, -1, 7, -1)
    assert [future.is_done for future in futures] == [True, False, True]
    topic_batch.resolve(batches[1], 5, NotEnoughReplicasError())
    assert futures[1].failed() and futures[1].retriable() and futures[1].value is None
    with pytest.raises(NotEnoughReplicasError):
        futures[1].get()


def test_callbacks_run_if_added_before_or_after_the_outcome():
    topic_batch, batches, batch_of = assembled()
    told = []
    for row in range(3):
        future = SendFuture(topic_batch, row)
        future.add_callback(lambda row, metadata: told.append((row, metadata.offset)), row)
        future.add_errback(lambda error, row: told.append((row, error)), row=row)
    error = NotEnoughReplicasError()
    topic_batch.begin(batches, batch_of, {})
    assert told == []
    topic_batch.resolve(batches[0], 40, None)
    assert told == [(0, 40), (2, 41)]
    topic_batch.resolve(batches[1], -1, error)
    assert told[2:] == [(1, error)]
    SendFuture(topic_batch, 1).add_both(told.append)
    assert told[3:] == [error]
    chained = Future()
    SendFuture(topic_batch, 0).chain(chained)
    assert chained.value.offset == 40


def test_the_work_for_callbacks_grows_with_the_records_and_not_with_the_partitions():
    class Counted(list):
        reads = 0

        def __getitem__(self, row):
            self.reads += 1
            return super().__getitem__(row)

    partitions, rows = 100, 1_000
    topic_batch, _, _ = assembled(rows)
    tables = [pa.table({"n": [0] * (rows // partitions)})] * partitions
    batches = [ProducerBatch(topic_batch, p, TOPIC, p, tables[p], 10, 0.0) for p in range(partitions)]
    batch_of, told = Counted(row % partitions for row in range(rows)), []
    for row in range(0, rows, 2):
        SendFuture(topic_batch, row).add_callback(lambda _, row: told.append(row), row=row)
    topic_batch.begin(batches, batch_of, {})
    for row in range(1, rows, 2):
        SendFuture(topic_batch, row).add_callback(lambda _, row: told.append(row), row=row)
    for batch in batches:
        topic_batch.resolve(batch, 0, None)
    assert told == sorted(range(rows), key=lambda row: row % partitions)
    assert batch_of.reads <= 10 * rows


def test_callback_error_is_logged_and_other_callbacks_run(caplog):
    topic_batch, batches, batch_of = assembled()
    told = []
    SendFuture(topic_batch, 0).add_callback(lambda _: 1 / 0).add_callback(told.append)
    topic_batch.begin(batches, batch_of, {})
    with caplog.at_level(logging.ERROR):
        topic_batch.resolve(batches[0], 0, None)
    assert len(told) == 1 and "ZeroDivisionError" in caplog.text


def test_faults_and_failure_of_the_whole_batch():
    topic_batch, batches, batch_of = assembled()
    told = []
    SendFuture(topic_batch, 1).add_errback(told.append)
    fault, end = ValueError("bad"), IllegalStateError("closed")
    topic_batch.begin(batches[:1], np.where(batch_of == 1, -1, 0), {1: fault})
    assert told == [fault] and SendFuture(topic_batch, 1).exception is fault
    topic_batch.fail(end)
    assert SendFuture(topic_batch, 0).exception is end and SendFuture(topic_batch, 1).exception is fault
    assert not topic_batch.resolve(batches[0], 3, None), "the first fate stays"

    waiting, batches, batch_of = assembled()
    SendFuture(waiting, 2).add_errback(told.append)
    waiting.fail(end)
    assert told[1:] == [end] and waiting.done
    waiting.begin(batches, batch_of, {})
    assert all(batch.done for batch in batches) and SendFuture(waiting, 2).exception is end


def test_get_waits_for_the_outcome_in_another_thread():
    topic_batch, batches, batch_of = assembled()
    found = []
    thread = threading.Thread(target=lambda: found.append(SendFuture(topic_batch, 1).get(timeout=30)))
    thread.start()
    topic_batch.begin(batches, batch_of, {})
    topic_batch.resolve(batches[1], 9, None)
    thread.join(timeout=30)
    assert found[0].offset == 9


def test_table_future_is_done_when_every_part_is():
    future = TableFuture()
    told = []
    both = [assembled(), assembled()]
    for topic_batch, _, _ in both:
        future.add(topic_batch)
    future.add_callback(told.append)
    for base, (topic_batch, batches, _) in enumerate(both):
        topic_batch.begin(batches, np.empty(0, np.int64), {})
        for batch in batches:
            assert not future.is_done
            topic_batch.resolve(batch, base * 10, None)
    assert future.succeeded()
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    ranges = [Written(zero, 0, 2), Written(zero, 10, 12), Written(one, 0, 1), Written(one, 10, 11)]
    assert future.get(timeout=1) == ranges and told == [ranges]


def test_table_future_fails_with_the_first_error_and_lists_written_records():
    future = TableFuture()
    topic_batch, batches, _ = assembled()
    future.add(topic_batch)
    topic_batch.begin(batches, np.empty(0, np.int64), {})
    topic_batch.resolve(batches[0], 4, None)
    with pytest.raises(KafkaTimeoutError):
        future.get(timeout=0.001)
    topic_batch.resolve(batches[1], -1, NotEnoughReplicasError())
    with pytest.raises(NotEnoughReplicasError):
        future.get(timeout=1)
    assert future.written() == [Written(TopicPartition("t", 0), 4, 6)]


def test_a_callback_of_a_table_future_that_exits_does_not_end_the_sender(caplog):
    future = TableFuture()
    topic_batch, batches, _ = assembled()
    future.add(topic_batch)
    told = []
    future.add_callback(lambda _: sys.exit(1)).add_callback(told.append)
    topic_batch.begin(batches, np.empty(0, np.int64), {})
    for batch in batches:
        assert topic_batch.resolve(batch, 0, None)
    assert future.succeeded() and "SystemExit" in caplog.text and len(told) == 1


def test_the_listener_of_two_threads_that_end_a_topic_batch_is_called_once():
    calls = []

    class Raced(TopicBatch):
        """Another thread resolves the second batch while the thread of the first one reads the listener."""

        other = None

        @property
        def listener(self):
            value = self.value
            if self.other is None and batches[0].done:
                self.other = threading.Thread(target=self.resolve, args=[batches[1], 0, None])
                self.other.start()
                self.other.join(0.1)  # it ends only if this thread does not hold the lock
            return value

        @listener.setter
        def listener(self, value):
            self.value = value

    topic_batch, batches, batch_of = assembled(kind=Raced)
    topic_batch.listener = lambda: calls.append(threading.current_thread())
    topic_batch.begin(batches, batch_of, {})
    topic_batch.resolve(batches[0], 0, None)
    if topic_batch.other is None:
        topic_batch.resolve(batches[1], 0, None)
    assert len(calls) == 1


def test_ranges_of_batches_that_follow_each_other_are_one():
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    ranges = [Written(zero, 2, 3), Written(one, 2, 4), Written(zero, 0, 2), Written(zero, 5, 6), Written(one, 4, 4)]
    assert merged(ranges) == [Written(zero, 0, 3), Written(zero, 5, 6), Written(one, 2, 4)]
    unknown = [Written(zero, -1, -1), Written(zero, -1, -1)]
    assert merged(unknown) == unknown
