import threading

import pytest
from kafka.errors import IllegalStateError

from spark_log import clock
from spark_log.clients.produce.accumulator import Accumulator, Queue
from spark_log.clients.produce.producer_batch import TopicBatch
from spark_log.clients.produce.producer_settings import ProducerSettings
from spark_log.errors import KafkaTimeoutError
from tests.support.waiting import LIMIT_S, Worker

HOUR_MS = 3_600_000


def accumulator(**given):
    return Accumulator(ProducerSettings(delivery_timeout_ms=2 * HOUR_MS, **given))


def add(box, queue, value=b"v", size=100):
    return box.add(queue, None, value, None, None, 0, size)


def values(topic_batches):
    return [list(topic_batch.values) for topic_batch in topic_batches]


def test_record_is_due_at_once_without_linger():
    box = accumulator()
    queue = box.queue("t", 1000)
    topic_batch, row = add(box, queue)
    assert row == 0 and box.take(None) == [topic_batch]
    assert add(box, queue)[0] is not topic_batch


def test_records_wait_for_a_full_batch_with_linger():
    box = accumulator(linger_ms=HOUR_MS)
    queue, other = box.queue("t", 300), box.queue("u", 300)
    add(box, other, b"u")
    add(box, queue, b"1")
    add(box, queue, b"2")
    assert box.take(clock.monotonic_s()) == []
    add(box, queue, b"3")
    assert values(box.take(None)) == [[b"1", b"2", b"3"]]
    assert values(box.flush()) == [[b"u"], [b"1", b"2", b"3"]]
    assert values(box.take(None)) == [[b"u"]]


class UnusedQueue(Queue):
    """A queue that must not be looked at."""

    __slots__ = ()

    @property
    def open(self):
        raise AssertionError

    closed = open


@pytest.mark.parametrize("linger_ms", [0, HOUR_MS])
def test_topics_without_records_cost_nothing(linger_ms):
    box = accumulator(linger_ms=linger_ms)
    queue, used = box.queue("t", 1000), box.queue("u", 1000)
    box._queues["idle"] = UnusedQueue.__new__(UnusedQueue)
    for value in (b"1", b"2"):
        add(box, queue, value)
        box.flush()
        assert values(box.take(None)) == [[value]]
        box.add_topic_batch(used, TopicBatch("u"))
        assert len(box.take(None)) == 1
    assert box._filled == {}
    box.close()
    assert box.take(None) is None


def test_take_waits_for_linger():
    box = accumulator(linger_ms=20)
    topic_batch, _ = add(box, box.queue("t", 10**6))
    assert box.take(None) == [topic_batch]
    assert clock.monotonic_s() >= topic_batch.made_s + 0.02


def test_full_batch_wakes_the_waiting_sender():
    box = accumulator(linger_ms=HOUR_MS)
    queue = box.queue("t", 200)
    taken = []
    thread = threading.Thread(target=lambda: taken.append(box.take(None)))
    thread.start()
    add(box, queue)
    add(box, queue)
    thread.join(timeout=30)
    assert len(taken[0][0].values) == 2


def test_table_keeps_its_place_among_records():
    box = accumulator(linger_ms=HOUR_MS)
    queue = box.queue("t", 10**6)
    add(box, queue, b"before")
    table = TopicBatch("t")
    box.add_topic_batch(queue, table)
    add(box, queue, b"after")
    before, second = box.take(None)
    assert before.values == [b"before"] and second is table
    box.flush()
    assert values(box.take(None)) == [[b"after"]]


def test_add_times_out_when_the_buffer_is_full():
    box = accumulator(linger_ms=HOUR_MS, buffer_memory=250, max_block_ms=20)
    queue = box.queue("t", 10**6)
    add(box, queue)
    add(box, queue)
    with pytest.raises(KafkaTimeoutError, match="no room for 100 bytes within max_block_ms: 200 of buffer_memory=250"):
        add(box, queue)
    assert box.available_bytes == 50
    box.release(200)
    add(box, queue, size=1000)
    assert box.available_bytes == 0, "a record larger than the buffer goes alone"


def test_a_wait_for_room_makes_everything_due():
    box = accumulator(linger_ms=HOUR_MS, buffer_memory=250, max_block_ms=HOUR_MS)
    queue = box.queue("t", 10**6)
    add(box, queue)
    add(box, queue)
    waiting = Worker(lambda _: add(box, queue))
    assert [len(each) for each in values(box.take(clock.monotonic_s() + LIMIT_S))] == [2]
    box.release(200)
    waiting.finish()
    assert box.available_bytes == 150


def test_a_full_buffer_does_not_split_the_records_while_the_sender_is_busy():
    box = accumulator(linger_ms=HOUR_MS, buffer_memory=250, max_block_ms=1)
    queue = box.queue("t", 10**6)
    for _ in range(2):
        add(box, queue)
        with pytest.raises(KafkaTimeoutError):
            add(box, queue, size=200)
    assert [len(each) for each in values(box.flush())] == [2]


def test_add_waits_for_room():
    box = accumulator(buffer_memory=250, max_block_ms=30_000)
    queue = box.queue("t", 10**6)
    add(box, queue, size=200)
    thread = threading.Thread(target=lambda: add(box, queue, b"late"))
    thread.start()
    box.release(200)
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_close_ends_the_wait_for_room():
    box = accumulator(buffer_memory=250, max_block_ms=HOUR_MS)
    queue = box.queue("t", 10**6)
    add(box, queue, size=200)
    waits, refused = threading.Event(), []
    wait_for = box._room.wait_for

    def announce(*arguments):
        waits.set()  # the accumulator's lock is held until the wait begins
        return wait_for(*arguments)

    box._room.wait_for = announce

    def send():
        try:
            add(box, queue)
        except IllegalStateError as error:
            refused.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    assert waits.wait(60)
    box.close()
    thread.join(timeout=60)
    assert refused


def test_sender_thread_never_waits_for_room():
    box = accumulator(buffer_memory=100, max_block_ms=HOUR_MS)
    box.sender = threading.current_thread()
    for _ in range(3):
        add(box, box.queue("t", 10**6))


def test_closed_accumulator_returns_waiting_records_and_refuses_new_ones():
    box = accumulator(linger_ms=HOUR_MS)
    queue = box.queue("t", 10**6)
    topic_batch, _ = add(box, queue)
    box.close()
    with pytest.raises(IllegalStateError):
        add(box, queue)
    with pytest.raises(IllegalStateError):
        box.add_topic_batch(queue, TopicBatch("t"))
    assert box.take(None) == [topic_batch]
    assert box.take(None) is None


def test_wait_for_returns_when_topic_batches_are_finished():
    box = accumulator()
    topic_batch, _ = add(box, box.queue("t", 10**6))
    outstanding = box.flush()
    assert outstanding == [topic_batch] and not box.wait_for(outstanding, 0.001)
    box.finished(topic_batch)
    assert box.wait_for(outstanding, None) and box.flush() == []
