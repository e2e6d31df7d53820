"""Memory goes to the client that holds least; of equals, to the one that got some longest ago."""

from spark_log.gateway.limits.memory_order import Waiter, WaitersOfClient, WaitingClients


def test_the_waiters_of_a_client_are_known_by_size_and_by_age():
    old, small = Waiter("a", 90, 0.0, 1), Waiter("a", 10, 1.0, 2)
    queue = WaitersOfClient()
    for waiter in (old, small):
        queue.add(waiter)
    assert (queue.smallest, queue.oldest) == (small, old)
    queue.remove(old)
    assert (queue.smallest, queue.oldest) == (small, small)
    queue.remove(small)
    assert not queue


def turns(clients):
    found = []
    while (client := clients.first) is not None:
        found.append(client)
        clients.remove(client)
    return found


def test_who_holds_least_is_first_then_who_got_memory_longest_ago_or_waits_longest():
    clients = WaitingClients()
    for client, *turn in [
        ("a", 5, 0, 1),
        ("b", 0, 9, 2),
        ("c", 0, 3, 3),
        ("x", 0, 0, 4),
        ("new", 0, 0, 5),
        ("d", 5, 1, 6),
    ]:
        clients.put(client, *turn)
    assert turns(clients) == ["x", "new", "c", "b", "a", "d"]


def test_a_turn_that_is_given_anew_replaces_the_old_one():
    clients = WaitingClients()
    clients.put("a", 0, 0, 1)
    clients.put("b", 1, 0, 2)
    clients.put("a", 2, 7, 1)
    assert clients.first == "b"
    clients.put("a", 0, 8, 1)
    clients.put("a", 0, 8, 1)
    assert turns(clients) == ["a", "b"]
