"""Memory is given in order; who holds it and does not go on loses its connection when others need it."""

import asyncio

import pytest

from spark_log import clock
from spark_log.gateway.limits import memory_budget
from spark_log.gateway.limits.memory_budget import MemoryBudget
from tests.support.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(memory_budget, "_PATIENCE_S", 0.01)


BYTES = 1_600
"""Of a budget: small clients hold 100 at most, and large ones together 1,200."""


class Client:
    def __init__(self, budget, key=None):
        self.closed = False
        self.hold = budget.hold(self.close, key or f"User:ANONYMOUS@{id(self)}")

    def close(self):
        self.closed = True

    def stall(self, seconds):
        self.hold.stalled_since_s = clock.monotonic_s() - seconds


async def begun(client, size):
    task = asyncio.create_task(client.hold.more(size))
    await asyncio.sleep(0)
    return task


async def test_what_needs_little_does_not_wait_behind_what_needs_much():
    budget = MemoryBudget(BYTES)
    first, second, third = (Client(budget) for _ in range(3))
    await first.hold.more(1_000)
    large = await begun(second, 800)
    assert third.hold.more_at_once(100)
    assert not large.done()
    first.hold.close()
    await asyncio.wait_for(large, LIMIT_S)
    assert budget.bytes_held == 900


async def test_a_large_request_that_takes_all_of_the_budget_leaves_the_quarter_of_small_clients():
    budget = MemoryBudget(BYTES)
    await Client(budget).hold.more(BYTES)
    small = [Client(budget) for _ in range(5)]
    assert [client.hold.more_at_once(100) for client in small] == [True, True, True, True, False]


async def test_large_requests_leave_a_quarter_to_small_clients():
    budget = MemoryBudget(BYTES)
    large = [Client(budget) for _ in range(3)]
    for client in large[:2]:
        await client.hold.more(600)
    waiting = await begun(large[2], 200)
    small = [Client(budget) for _ in range(4)]
    assert [client.hold.more_at_once(100) for client in small] == [True] * 4
    assert not small[0].hold.more_at_once(100), "it would be a large one"
    assert not waiting.done()
    large[0].hold.close()
    await asyncio.wait_for(waiting, LIMIT_S)


async def test_a_client_that_asks_again_and_again_comes_behind_the_others():
    """As clients that are closed because they stall, and connect again."""
    async with asyncio.timeout(LIMIT_S):
        budget = MemoryBudget(BYTES)
        holder = Client(budget)
        await holder.hold.more(1_200)
        for number in range(20):
            await begun(Client(budget, f"attacker {number % 2}"), 1_000)
        victim = Client(budget)
        task = await begun(victim, 1_000)
        holder.hold.close()
        turns = 0
        while not task.done():
            turns += 1
            [stalled] = budget._holds
            stalled.close()
            await asyncio.sleep(0)
        assert turns == 2


async def test_the_slowest_that_waits_for_its_client_is_closed_for_one_that_waits_for_memory():
    budget = MemoryBudget(BYTES)
    busy, slow, slowest, waiting = (Client(budget) for _ in range(4))
    for client, size in ((busy, 400), (slow, 500), (slowest, 300)):
        await client.hold.more(size)
    slow.stall(10)
    slow.hold._moved = 100
    slowest.stall(10)
    await asyncio.wait_for(waiting.hold.more(300), LIMIT_S)
    assert [client.closed for client in (busy, slow, slowest, waiting)] == [False, False, True, False]


async def test_nobody_is_closed_while_there_is_enough_memory_or_all_go_on(monkeypatch):
    monkeypatch.setattr(memory_budget, "_STALLED_S", LIMIT_S)
    budget = MemoryBudget(BYTES)
    busy, stalled, waiting = (Client(budget) for _ in range(3))
    await busy.hold.more(500)
    await stalled.hold.more(500)
    stalled.stall(0)
    task = await begun(waiting, 500)
    await asyncio.sleep(0.1)
    assert not stalled.closed and not task.done()
    busy.hold.close()
    await asyncio.wait_for(task, LIMIT_S)


async def test_a_small_client_that_stalls_is_not_closed_for_a_large_one():
    budget = MemoryBudget(BYTES)
    small, large, waiting = (Client(budget) for _ in range(3))
    await small.hold.more(100)
    await large.hold.more(1_000)
    small.stall(10)
    task = await begun(waiting, 1_000)
    await asyncio.sleep(0.1)
    assert not small.closed and not task.done()
    large.hold.close()
    await asyncio.wait_for(task, LIMIT_S)


async def test_as_many_are_closed_as_the_first_that_waits_needs():
    budget = MemoryBudget(BYTES)
    stalled = [Client(budget) for _ in range(5)]
    for client in stalled:
        await client.hold.more(240)
        client.stall(10)
    waiting = Client(budget)
    await asyncio.wait_for(waiting.hold.more(600), LIMIT_S)
    assert sum(client.closed for client in stalled) == 3


async def test_a_client_that_sends_or_takes_on_is_not_stalled():
    hold = Client(MemoryBudget(BYTES)).hold
    hold.waits_for_client(True)
    before_s = hold.stalled_since_s
    hold.has_moved(4 * 1024 * 1024)
    assert hold.stalled_since_s == pytest.approx(before_s + 1)
    assert hold.bytes_per_s(before_s + 2) == pytest.approx(2 * 1024 * 1024)


async def test_a_request_whose_connection_has_ended_holds_nothing_and_waits_no_longer():
    budget = MemoryBudget(BYTES)
    first, second, third = (Client(budget) for _ in range(3))
    await first.hold.more(1_600)
    task = await begun(second, 1_600)
    second.hold.close()
    first.hold.close()
    await asyncio.wait([task])
    assert isinstance(task.exception(), ConnectionAbortedError)
    second.hold.set(1_600)
    with pytest.raises(ConnectionAbortedError):
        await second.hold.more(1)
    assert budget.bytes_held == 0
    await asyncio.wait_for(third.hold.more(1_600), LIMIT_S)


async def test_who_no_longer_waits_is_given_nothing():
    budget = MemoryBudget(BYTES)
    first, second = Client(budget), Client(budget)
    await first.hold.more(1_600)
    task = await begun(second, 1_600)
    task.cancel()
    await asyncio.wait([task])
    first.hold.close()
    assert budget.bytes_held == 0


async def test_one_large_request_may_be_larger_than_all_memory_beside_small_ones():
    small, client, another = (Client(budget) for budget in [MemoryBudget(BYTES)] * 3)
    await small.hold.more(90)
    await asyncio.wait_for(client.hold.more(2_000), LIMIT_S)
    assert not another.hold.more_at_once(200)
    assert not client.hold._budget.hold(client.close, client.hold.client).more_at_once(1), "a second one of it"


async def test_a_large_request_has_its_turn_beside_clients_that_give_back_and_ask_again():
    budget = MemoryBudget(BYTES)
    attackers = [Client(budget, "attacker") for _ in range(20)]
    is_given = asyncio.Event()

    async def ask_again(client):
        while not is_given.is_set():
            await client.hold.more(300)
            await asyncio.sleep(0.01)
            client.hold.set(0)

    attacks = [asyncio.create_task(ask_again(client)) for client in attackers]
    await asyncio.sleep(0.02)
    victim = Client(budget)
    await asyncio.wait_for(victim.hold.more(1_000), LIMIT_S)
    is_given.set()
    victim.hold.close()
    await asyncio.gather(*attacks)


async def test_responses_that_exist_beyond_the_budget_end_the_slowest_then_the_largest():
    async with asyncio.timeout(LIMIT_S):
        budget = MemoryBudget(BYTES)
        busy, *stalled = (Client(budget) for _ in range(4))
        busy.hold.set(640)
        for client, size in zip(stalled, (480, 800, 960), strict=True):
            client.hold.set(size)
            client.stall(10)
        while budget.bytes_held > budget.bytes_max:
            await asyncio.sleep(0.01)
        assert [client.closed for client in (busy, *stalled)] == [False, False, True, True]


async def test_responses_that_wait_for_each_other_while_they_grow_do_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(memory_budget, "_STALLED_S", 0.01)
    budget = MemoryBudget(BYTES)
    first, second = Client(budget), Client(budget)
    await first.hold.more(600)
    await second.hold.more(500)
    grown = await asyncio.wait_for(
        asyncio.gather(first.hold.more(900), second.hold.more(900), return_exceptions=True), LIMIT_S
    )
    assert (first.closed, second.closed) == (True, False)
    assert [type(one) for one in grown] == [ConnectionAbortedError, type(None)]


async def test_what_is_taken_at_once_never_waits_and_passes_no_other_of_its_kind_that_waits():
    budget = MemoryBudget(BYTES)
    first, second, third = (Client(budget) for _ in range(3))
    assert first.hold.more_at_once(1_100) and not second.hold.more_at_once(300)
    task = await begun(second, 300)
    assert not third.hold.more_at_once(101)
    first.hold.close()
    await asyncio.wait_for(task, LIMIT_S)
    assert budget.bytes_held == 300


async def test_a_large_hold_that_is_alone_costs_no_small_client_its_connection():
    """Although both together are more than there is."""
    async with asyncio.timeout(LIMIT_S):
        budget = MemoryBudget(BYTES)
        small = [Client(budget) for _ in range(6)]
        for client in small:
            await client.hold.more(100)
            client.stall(10)
        large = Client(budget)
        await large.hold.more(1_500)
        assert budget.bytes_held == 2_100
        await asyncio.sleep(0.1)
        assert not any(client.closed for client in small)
        small[0].hold.set(1_200)  # two large ones
        while not small[0].closed:
            await asyncio.sleep(0.01)
        assert not large.closed and not any(client.closed for client in small[1:])


async def test_so_many_connections_are_closed_in_one_turn(monkeypatch):
    monkeypatch.setattr(memory_budget, "_CLOSED_AT_ONCE", 2)
    async with asyncio.timeout(LIMIT_S):
        budget = MemoryBudget(BYTES)
        stalled = [Client(budget) for _ in range(6)]
        for client in stalled:
            client.hold.set(500)
            client.stall(10)
        budget._check()
        assert sum(client.closed for client in stalled) == 2
        while budget.bytes_held > budget.bytes_max:
            await asyncio.sleep(0.01)
        assert sum(client.closed for client in stalled) == 3
