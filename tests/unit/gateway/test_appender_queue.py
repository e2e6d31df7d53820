"""Which produce requests are in one transaction of the store: clients take turns, connections keep their order."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import MetadataStoreUnavailableError
from spark_log.gateway.counters import Counters
from spark_log.gateway.records import appender
from spark_log.gateway.records.append_queue import Queue, Request
from spark_log.gateway.records.appender import Appender
from spark_log.gateway.records.batch_checks import Outcome, SentBatch

REQUESTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([1, -1]), st.sampled_from([None, "t"])),
    max_size=30,
)


def request(number, client, connection, acks=1, transactional_id=None, batches=()):
    return Request(f"client {client}", f"connection {client} {connection}", batches, acks, transactional_id, number)


@given(REQUESTS, st.data())
def test_each_request_is_taken_once_in_the_order_of_its_connection(rows, data):
    waiting = [request(number, *row) for number, row in enumerate(rows)]
    queue, taken = Queue(), []
    while waiting or queue:
        for _ in range(data.draw(st.integers(0 if queue else 1, 5))):
            if waiting:
                queue.put(waiting.pop(0))
        if queue:
            together = queue.take()
            assert together
            assert all(one.may_join(together[0]) for one in together)
            kept = data.draw(st.integers(1, len(together)))
            queue.put_back(together[kept:])
            taken += together[:kept]
    assert sorted(one.done for one in taken) == list(range(len(rows)))
    of_connection = {}
    for one in taken:
        assert of_connection.get(one.connection, -1) < one.done
        of_connection[one.connection] = one.done


def test_many_requests_of_a_client_leave_the_next_transaction_to_the_others():
    queue = Queue()
    for number in range(500):  # each must have a transaction of its own, if they stay in their order
        queue.put(request(number, 0, 0, acks=(1, -1)[number % 2]))
    queue.put(request(1_000, 1, 0, acks=-1))
    queue.put(request(1_001, 2, 0, acks=1))
    assert [one.done for one in queue.take()] == [0, 1_001]
    assert [one.done for one in queue.take()] == [1_000, 1]
    for number in range(50):
        queue.put(request(2_000 + number, 1, number))
    assert Counter(one.client for one in queue.take()) == {"client 0": 1, "client 1": 50}


def test_a_transaction_has_a_bounded_number_of_batches_and_all_clients_have_their_turn():
    """Batches that hold no record, or are refused, cost time too: 0.3 ms each."""
    queue, refused = Queue(), [Outcome()] * 100
    for number in range(400):
        queue.put(request(number, number % 20, number, batches=refused))
    queue.put(request(1_000, "last", 0, batches=refused[:1]))
    transactions = []
    while queue:
        transactions.append(queue.take())
    assert max(sum(len(one.batches) for one in together) for together in transactions) == 500
    assert next(n for n, together in enumerate(transactions) if any(one.done == 1_000 for one in together)) == 4


def test_requests_that_are_put_back_come_first():
    queue = Queue()
    for number in range(4):
        queue.put(request(number, number % 2, 0))
    together = queue.take()
    queue.put(request(4, 2, 0))
    queue.put_back(together[2:])
    assert [one.done for one in queue.take()] == [2, 3, 4]


BATCH = SentBatch("flights", 0, bytes(100_000))


class Checks:
    """An appender whose checks take a minute each, or raise the error."""

    def __init__(self, monkeypatch, error=None):
        now_s, self.sizes = 0.0, []

        def check(batches, _limits):
            nonlocal now_s
            now_s += 60
            self.sizes.append(len(batches))
            if error is not None:
                raise error
            return [Outcome(base_offset=7)] * len(batches)

        self.appender = Appender(None, None, None, None, Counters())
        monkeypatch.setattr(self.appender, "check", check)
        monkeypatch.setattr(appender.clock, "monotonic_s", lambda: now_s)

    def of(self, requests):
        return self.appender._checked(requests)


def test_checks_that_take_long_are_left_to_the_next_transaction(monkeypatch):
    checks = Checks(monkeypatch)
    requests = [request(number, number, 0, batches=[BATCH, Outcome(base_offset=9)]) for number in range(5)]
    checked = checks.of(requests)
    assert [one.done for one in checked] == [0, 1]
    assert [[each.base_offset for each in one.batches] for one in checked] == [[7, 9]] * 2
    assert checks.sizes == [2], "more bytes are not checked together"
    assert [one.done for one in checks.appender._queue.take()] == [2, 3, 4]


def test_an_error_of_the_store_ends_the_checks_of_all_and_another_one_those_that_share_it(monkeypatch):
    requests = [request(number, number, 0, batches=[BATCH]) for number in range(3)]
    for error, failed in ((MetadataStoreUnavailableError("away"), [0, 1, 2]), (RuntimeError("unexpected"), [0, 1])):
        checks = Checks(monkeypatch, error)
        checked = checks.of(requests)
        assert [one.done for one in checked] == failed
        assert all(each.error is error for one in checked for each in one.batches)
        assert bool(checks.appender._queue) is (len(failed) < 3)
