"""Slow work leaves threads for the work of other kinds and of other keys."""

import asyncio
import threading

from spark_log.gateway.limits.bulkheads import Bulkheads, Lane
from spark_log.gateway.limits.memory_budget import MemoryBudget
from spark_log.gateway.limits.request_memory import RequestMemory
from spark_log.gateway.shares import share_admin_requests, share_requests
from tests.support.waiting import LIMIT_S


async def test_a_group_leaves_threads_for_others_a_client_with_many_groups_too_and_groups_for_other_kinds():
    bulkheads, go_on = Bulkheads(), threading.Event()
    try:
        slow = [
            asyncio.create_task(bulkheads.run(Lane.GROUP, "client", lambda: go_on.wait(60), "slow"))
            for _ in range(Lane.GROUP.threads * 3)
        ]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(bulkheads.run(Lane.GROUP, "client", lambda: 1, "other"), LIMIT_S) == 1
        slow += [
            asyncio.create_task(bulkheads.run(Lane.GROUP, "client", lambda: go_on.wait(60), f"invented {number}"))
            for number in range(Lane.GROUP.threads)
        ]
        await asyncio.sleep(0)
        other_client = bulkheads.run(Lane.GROUP, "other client", lambda: 3, "its group")
        assert await asyncio.wait_for(other_client, LIMIT_S) == 3
        assert await asyncio.wait_for(bulkheads.run(Lane.METADATA, "", lambda: 2), LIMIT_S) == 2
    finally:
        go_on.set()
        await asyncio.gather(*slow)
        bulkheads.close()


async def test_a_cancelled_call_keeps_its_thread_until_it_returns():
    bulkheads, go_on, running = Bulkheads(), threading.Event(), threading.Semaphore(0)

    def wait():
        running.release()
        go_on.wait(60)

    try:
        tasks = [asyncio.create_task(bulkheads.run(Lane.CODEC, "a", wait))]
        while not running.acquire(blocking=False):
            await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks)
        second = asyncio.create_task(bulkheads.run(Lane.CODEC, "a", lambda: 1))
        await asyncio.sleep(0.05)
        assert not second.done()
        go_on.set()
        assert await asyncio.wait_for(second, LIMIT_S) == 1
    finally:
        go_on.set()
        bulkheads.close()


async def test_who_waits_holds_no_thread_of_a_name_or_client_and_clients_take_turns():
    bulkheads, go_on, ran = Bulkheads(), threading.Event(), []

    def call(client, name, wait=False):
        def work():
            if wait:
                go_on.wait(60)
            ran.append((client, name))

        return asyncio.create_task(bulkheads.run(Lane.GROUP, client, work, name))

    try:
        slow = [call("greedy", f"slow {number}", wait=True) for number in range(Lane.GROUP.of_client)]
        await asyncio.sleep(0)
        greedy = [call("greedy", "group") for _ in range(100)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(call("client", "group"), LIMIT_S) is None
        greedy[50].cancel()
        others = [call("client", "other", wait=True) for _ in range(2)]  # the lane is full
        await asyncio.sleep(0)
        last = [call("third", "group"), call("client", "group")]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait_for(asyncio.gather(*slow, *others, *last), LIMIT_S)
        await asyncio.wait_for(asyncio.gather(*greedy, return_exceptions=True), LIMIT_S)
        assert greedy[50].cancelled()
        assert ran.count(("greedy", "group")) == 99
        calls = [each for each in ran if each[1] == "group"]
        assert {calls.index(("third", "group")) < 12, calls.index(("client", "group"), 1) < 12} == {True}
        assert await asyncio.wait_for(call("greedy", "group"), LIMIT_S) is None
    finally:
        go_on.set()
        bulkheads.close()


async def test_a_cancelled_call_keeps_the_memory_of_its_request_until_it_returns():
    async with asyncio.timeout(LIMIT_S):
        bulkheads, go_on, running = Bulkheads(), threading.Event(), threading.Event()
        budgets = [MemoryBudget(100) for _ in range(3)]
        memory = RequestMemory(*budgets, 100, lambda: None, "client")

        def wait():
            running.set()
            go_on.wait(60)

        try:
            await memory.records.more(70)
            task = asyncio.create_task(bulkheads.run(Lane.CODEC, "client", wait, memory=memory))
            while not running.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            memory.close()
            assert memory.records.bytes == 70
            go_on.set()
            while memory.records.bytes:
                await asyncio.sleep(0.01)
        finally:
            go_on.set()
            bulkheads.close()


def test_requests_that_use_files_have_no_threads_of_group_members():
    """A log dir that hangs would hold them."""
    lanes = {api.name: api.lane for api in (*share_requests.APIS, *share_admin_requests.APIS)}
    with_files = "ShareFetch", "ShareAcknowledge", "AlterShareGroupOffsets"
    assert [lanes[name] for name in with_files] == [Lane.FETCH, Lane.FETCH, Lane.ADMIN]
