"""Rules of the sender that need no cluster."""

import threading
from types import SimpleNamespace

import pyarrow as pa

from spark_log.clients.produce.accumulator import Accumulator
from spark_log.clients.produce.producer_batch import ProducerBatch, TopicBatch
from spark_log.clients.produce.producer_settings import ProducerSettings
from spark_log.clients.produce.sender import Sender, _drop_traceback
from spark_log.errors import MetadataStoreUnavailableError, StorageUnavailableError
from spark_log.ids import HOME
from spark_log.log.append.rules import Appended, Rejected


class Log:
    """A log in which an append with partition 0 and others has a bug, and partition 0 alone cannot be written."""

    def __init__(self):
        self.appended = []

    def append_each(self, items, **_):
        partitions = [records.partition for _, records in items]
        self.appended.append(partitions)
        if 0 in partitions and len(partitions) > 1:
            raise RuntimeError("a bug")
        return [
            Appended(0, 1) if partition else Rejected(StorageUnavailableError("no log dir")) for partition in partitions
        ]

    def take_expired(self):
        return []


def sender_of(log, batch_count):
    """A sender with a waiting batch for each partition."""
    settings = ProducerSettings(retry_backoff_ms=0, enable_idempotence=False)
    topic = SimpleNamespace(name="t", topic_id=1, store_id=HOME, partition_count=batch_count)
    topics = SimpleNamespace(refresh=lambda *_, **__: SimpleNamespace(topic=topic))
    topic_batch = TopicBatch("t")
    sender = Sender(SimpleNamespace(store=None), log, settings, Accumulator(settings), topics, None)
    table, numbers = pa.table({"value": [b"v"]}), range(batch_count)
    deadline_s = topic_batch.made_s + 3_600
    batches = [ProducerBatch(topic_batch, number, topic, number, table, 1, deadline_s) for number in numbers]
    topic_batch.unsettled = len(batches)
    topic_batch.begin(batches, list(numbers), {})
    for batch in batches:
        sender._waiting.add(batch)
    return sender, batches


def test_a_batch_is_tried_alone_once_after_an_append_that_failed():
    """Without a back-off a batch that fails again and again is always due."""
    log = Log()
    sender, batches = sender_of(log, 2)
    for _ in range(4):
        sender._append(sender._waiting.due())
    assert log.appended == [[0, 1], [0], [1], [0]]
    assert [batch.done for batch in batches] == [False, True]


def test_a_batch_whose_store_did_not_answer_is_in_doubt():
    """It may be stored: its sequence must not be given to another batch."""
    for error, in_doubt in ((MetadataStoreUnavailableError("no answer"), True), (StorageUnavailableError("no"), False)):
        log = SimpleNamespace(append_each=lambda *_, error=error, **__: [Rejected(error)], take_expired=list)
        sender, [batch] = sender_of(log, 1)
        sender._append(sender._waiting.due())
        assert batch.in_doubt is in_doubt


def raised(error):
    try:
        raise error
    except Exception as caught:
        return caught


def test_drop_traceback_ends_for_errors_that_cause_each_other():
    first, second = raised(ValueError("first")), raised(ValueError("second"))
    first.__cause__, second.__cause__ = second, first
    thread = threading.Thread(target=_drop_traceback, args=[first], daemon=True)
    thread.start()
    thread.join(60)
    ended = not thread.is_alive()
    second.__cause__ = None
    assert ended
    assert first.__traceback__ is None and second.__traceback__ is None
