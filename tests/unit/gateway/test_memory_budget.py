"""Memory is given in order; who holds it and does not go on loses its connection when others need it."""

import asyncio

import pytest

from spark_log import clock
from spark_log.gateway import memory_budget
from spark_log.gateway.memory_budget import MemoryBudget


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(memory_budget, "_PATIENCE_S", 0.01)


class Client:
    def __init__(self, budget):
        self.closed = False
        self.hold = budget.hold(self.close)

    def close(self):
        self.closed = True
        self.hold.keep(0)

    def stall(self, seconds):
        self.hold.stalled_since_s = clock.monotonic_s() - seconds


async def begun(client, size):
    task = asyncio.create_task(client.hold.more(size))
    await asyncio.sleep(0)
    return task


def test_memory_is_given_in_the_order_in_which_it_was_asked_for():
    async def run():
        budget = MemoryBudget(100)
        first, second, third = (Client(budget) for _ in range(3))
        await first.hold.more(80)
        large, small = await begun(second, 60), await begun(third, 10)
        assert not large.done() and not small.done()
        first.hold.keep(0)
        await asyncio.gather(large, small)
        assert budget.bytes_held == 70
        for client in (second, third):
            client.hold.keep(0)
        assert budget.bytes_held == 0

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
        busy.hold.keep(0)
        await asyncio.wait_for(task, 10)

    asyncio.run(run())


def test_a_frame_that_waits_for_the_memory_of_its_end_is_closed_too():
    async def run():
        budget = MemoryBudget(100)
        halves = [Client(budget) for _ in range(2)]
        for client in halves:
            await client.hold.more(50)
            client.stall(10)
        tasks = [await begun(client, 50) for client in halves]
        done, _ = await asyncio.wait(tasks, timeout=10)
        assert len(done) == 2
        assert sorted(client.closed for client in halves) == [False, True]
        assert sum(isinstance(task.exception(), ConnectionAbortedError) for task in tasks) == 1

    asyncio.run(run())


def test_who_no_longer_waits_is_given_nothing():
    async def run():
        budget = MemoryBudget(100)
        first, second = Client(budget), Client(budget)
        await first.hold.more(100)
        task = await begun(second, 100)
        task.cancel()
        await asyncio.wait([task])
        first.hold.keep(0)
        assert budget.bytes_held == 0

    asyncio.run(run())


def test_one_request_may_be_larger_than_all_memory():
    async def run():
        client = Client(budget := MemoryBudget(100))
        await asyncio.wait_for(client.hold.more(150), 10)
        assert budget.bytes_held == 150

    asyncio.run(run())
