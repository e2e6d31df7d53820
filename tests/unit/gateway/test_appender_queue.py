"""Which produce requests are in one transaction of the store: clients take turns, connections keep their order."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from spark_log.gateway.records.appender import _Queue, _Request
from spark_log.gateway.records.batch_checks import Outcome

REQUESTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([1, -1]), st.sampled_from([None, "t"])),
    max_size=30,
)


def request(number, client, connection, acks=1, transactional_id=None, batches=()):
    return _Request(f"client {client}", f"connection {client} {connection}", batches, acks, transactional_id, number)


@given(REQUESTS, st.data())
def test_each_request_is_taken_once_in_the_order_of_its_connection(rows, data):
    waiting = [request(number, *row) for number, row in enumerate(rows)]
    queue, taken = _Queue(), []
    while waiting or queue:
        for _ in range(data.draw(st.integers(0 if queue else 1, 5))):
            if waiting:
                queue.put(waiting.pop(0))
        if queue:
            together = queue.take()
            assert together
            assert all(one.may_join(together[0]) for one in together)
            taken += together
    assert sorted(one.done for one in taken) == list(range(len(rows)))
    of_connection = {}
    for one in taken:
        assert of_connection.get(one.connection, -1) < one.done
        of_connection[one.connection] = one.done


def test_many_requests_of_a_client_leave_the_next_transaction_to_the_others():
    queue = _Queue()
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
    queue, refused = _Queue(), [Outcome()] * 100
    for number in range(400):
        queue.put(request(number, number % 20, number, batches=refused))
    queue.put(request(1_000, "last", 0, batches=refused[:1]))
    transactions = []
    while queue:
        transactions.append(queue.take())
    assert max(sum(len(one.batches) for one in together) for together in transactions) == 500
    assert next(n for n, together in enumerate(transactions) if any(one.done == 1_000 for one in together)) == 4
