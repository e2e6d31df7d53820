"""Memory is given in order; who holds it and does not go on loses its connection when others need it."""

import asyncio

import pytest

from spark_log import clock
from spark_log.gateway.limits import memory_budget
from spark_log.gateway.limits.memory_budget import MemoryBudget


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(memory_budget, "_PATIENCE_S", 0.01)


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


def test_what_needs_little_does_not_wait_behind_what_needs_much():
    async def run():
        budget = MemoryBudget(100)
        first, second, third = (Client(budget) for _ in range(3))
        await first.hold.more(80)
        large, small = await begun(second, 60), await begun(third, 10)
        await asyncio.wait_for(small, 10)
        assert not large.done()
        first.hold.close()
        await asyncio.wait_for(large, 10)
        assert budget.bytes_held == 70

    asyncio.run(run())


def test_the_largest_that_waits_for_its_client_is_closed_for_one_that_waits_for_memory():
    async def run():
        budget = MemoryBudget(100)
        busy, small, large, waiting = (Client(budget) for _ in range(4))
        for client, size in ((busy, 40), (small, 20), (large, 30)):
            await client.hold.more(size)
        small.stall(10)
        large.stall(10)
        await asyncio.wait_for(waiting.hold.more(30), 10)
        assert [client.closed for client in (busy, small, large, waiting)] == [False, False, True, False]

    asyncio.run(run())


def test_nobody_is_closed_while_there_is_enough_memory_or_all_go_on():
    async def run():
        budget = MemoryBudget(100)
        busy, stalled, waiting = (Client(budget) for _ in range(3))
        await busy.hold.more(40)
        await stalled.hold.more(40)
        stalled.stall(0)
        task = await begun(waiting, 40)
        await asyncio.sleep(0.1)
        assert not stalled.closed and not task.done()
        busy.hold.close()
        await asyncio.wait_for(task, 10)

    asyncio.run(run())


def test_as_many_are_closed_as_the_first_that_waits_needs():
    async def run():
        budget = MemoryBudget(100)
        stalled = [Client(budget) for _ in range(5)]
        for client in stalled:
            await client.hold.more(20)
            client.stall(10)
        waiting = Client(budget)
        await asyncio.wait_for(waiting.hold.more(50), 10)
        assert sum(client.closed for client in stalled) == 3

    asyncio.run(run())


def test_a_client_that_sends_on_is_not_stalled():
    async def run():
        hold = Client(MemoryBudget(100)).hold
        hold.waits_for_client(True)
        before_s = hold.stalled_since_s
        hold.has_received(4 * 1024 * 1024)
        assert hold.stalled_since_s == pytest.approx(before_s + 1)

    asyncio.run(run())


def test_a_request_whose_connection_has_ended_holds_nothing_and_waits_no_longer():
    async def run():
        budget = MemoryBudget(100)
        first, second, third = (Client(budget) for _ in range(3))
        await first.hold.more(100)
        task = await begun(second, 100)
        second.hold.close()
        first.hold.close()
        await asyncio.wait([task])
        assert isinstance(task.exception(), ConnectionAbortedError)
        second.hold.set(100)
        with pytest.raises(ConnectionAbortedError):
            await second.hold.more(1)
        assert budget.bytes_held == 0
        await asyncio.wait_for(third.hold.more(100), 10)

    asyncio.run(run())


def test_who_no_longer_waits_is_given_nothing():
    async def run():
        budget = MemoryBudget(100)
        first, second = Client(budget), Client(budget)
        await first.hold.more(100)
        task = await begun(second, 100)
        task.cancel()
        await asyncio.wait([task])
        first.hold.close()
        assert budget.bytes_held == 0

    asyncio.run(run())


def test_one_request_may_be_larger_than_all_memory():
    async def run():
        client = Client(budget := MemoryBudget(100))
        await asyncio.wait_for(client.hold.more(150), 10)
        assert budget.bytes_held == 150

    asyncio.run(run())


def test_a_large_request_has_its_turn_beside_clients_that_give_back_and_ask_again():
    async def run():
        budget = MemoryBudget(100)
        attackers = [Client(budget, "attacker") for _ in range(20)]
        is_given = asyncio.Event()

        async def ask_again(client):
            while not is_given.is_set():
                await client.hold.more(20)
                await asyncio.sleep(0.01)
                client.hold.set(0)

        attacks = [asyncio.create_task(ask_again(client)) for client in attackers]
        await asyncio.sleep(0.02)
        victim = Client(budget)
        await asyncio.wait_for(victim.hold.more(60), 5)
        is_given.set()
        victim.hold.close()
        await asyncio.gather(*attacks)

    asyncio.run(run())


def test_responses_that_exist_beyond_the_budget_end_the_largest_that_are_not_read():
    async def run():
        budget = MemoryBudget(100)
        busy, *stalled = (Client(budget) for _ in range(4))
        busy.hold.set(40)
        for client, size in zip(stalled, (30, 50, 60), strict=True):
            client.hold.set(size)
            client.stall(10)
        while budget.bytes_held > budget.bytes_max:
            await asyncio.sleep(0.01)
        assert [client.closed for client in (busy, *stalled)] == [False, False, True, True]

    asyncio.run(asyncio.wait_for(run(), 10))


def test_responses_that_wait_for_each_other_while_they_grow_do_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(memory_budget, "_STALLED_S", 0.01)

    async def run():
        budget = MemoryBudget(100)
        first, second = Client(budget), Client(budget)
        await first.hold.more(50)
        await second.hold.more(40)
        grown = await asyncio.wait_for(
            asyncio.gather(first.hold.more(60), second.hold.more(60), return_exceptions=True), 10
        )
        assert (first.closed, second.closed) == (True, False)
        assert [type(one) for one in grown] == [ConnectionAbortedError, type(None)]

    asyncio.run(run())


def test_what_is_taken_at_once_never_waits_and_passes_no_other_that_waits():
    async def run():
        budget = MemoryBudget(100)
        first, second, third = (Client(budget) for _ in range(3))
        assert first.hold.more_at_once(90) and not second.hold.more_at_once(20)
        task = await begun(second, 20)
        assert not third.hold.more_at_once(5)
        first.hold.close()
        await asyncio.wait_for(task, 10)
        assert budget.bytes_held == 20

    asyncio.run(run())
