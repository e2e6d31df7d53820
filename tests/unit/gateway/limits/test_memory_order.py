"""Memory goes to the client that holds least; a large request waits for a second at most behind smaller ones."""

import pytest

from spark_log.gateway.limits.memory_order import Front, Waiter, WaitersOfClient, first_of

NOW_S = 1_000.0
OLD = Waiter("a", 90, NOW_S - 2, 1)
SMALL = Waiter("a", 10, NOW_S - 0.5, 2)
SMALLER = Waiter("b", 5, NOW_S - 0.1, 3)
LARGE = Waiter("c", 50, NOW_S - 0.9, 4)


@pytest.mark.parametrize(
    ("fronts", "held", "expected"),
    [
        ([Front(SMALL, SMALL), Front(SMALLER, SMALLER)], {}, SMALLER),
        ([Front(SMALL, SMALL), Front(SMALLER, SMALLER)], {"b": 1}, SMALL),
        ([Front(LARGE, LARGE), Front(SMALLER, SMALLER)], {"b": 1}, LARGE),
        ([Front(LARGE, LARGE), Front(SMALLER, SMALLER)], {"b": 7, "c": 7}, SMALLER),
        ([Front(SMALL, OLD), Front(SMALLER, SMALLER)], {}, OLD),
        ([Front(SMALL, OLD), Front(SMALLER, SMALLER)], {"a": 2, "b": 1}, SMALLER),
    ],
)
def test_the_first_is_of_the_client_that_holds_least_then_the_smallest_unless_one_has_waited_for_a_second(
    fronts, held, expected
):
    assert first_of({front.smallest.client: front for front in fronts}, held, NOW_S) == expected


def test_the_waiters_of_a_client_are_known_by_size_and_by_age():
    queue = WaitersOfClient()
    for waiter in (OLD, SMALL):
        queue.add(waiter)
    assert queue.front == Front(SMALL, OLD)
    queue.remove(OLD)
    assert queue.front == Front(SMALL, SMALL)
    queue.remove(SMALL)
    assert not queue
