"""Responses are made in portions, as far as there is memory for them."""

import asyncio
from types import SimpleNamespace

import pytest
from kafka.protocol.admin import ListGroupsResponse

from spark_log.gateway.limits.bulkheads import Bulkheads, Lane, RequestContext, request_context
from spark_log.gateway.limits.memory_budget import MemoryBudget
from spark_log.gateway.limits.request_memory import RequestMemory, ResponseTooLargeError
from spark_log.gateway.services import Needed, Services, size_of
from tests.support.waiting import LIMIT_S

RESPONSES_BYTES = 2_000_000
LARGE_NAME = 300_000


class Request:
    """A request whose answers are made in threads. `made` has the keys for which one was made, in order."""

    def __init__(self, response_bytes_max=10_000_000, responses=None):
        self.responses = MemoryBudget(RESPONSES_BYTES) if responses is None else responses
        budgets = MemoryBudget(1), MemoryBudget(1), self.responses
        self.memory = RequestMemory(*budgets, response_bytes_max, lambda: None, f"client {id(self)}")
        self.made = []
        self.bulkheads = Bulkheads()

    def make(self, key):
        self.made.append(key)
        return ListGroupsResponse.ListedGroup(group_id=key, protocol_type="", group_state="", group_type="")

    async def answer(self, keys):
        request_context.set(RequestContext(Lane.ADMIN, "client", None, self.memory))
        services = SimpleNamespace(bulkheads=self.bulkheads)
        services.call = lambda *arguments: Services.call(services, *arguments)
        try:
            return [each.group_id for each in await Services.in_portions(services, self.make, keys)]
        finally:
            self.bulkheads.close()


async def test_equal_keys_are_answered_once():
    request = Request()
    assert await request.answer(["a", "b", "a"] * 1_000) == ["a", "b"]
    assert request.made == ["a", "b"]


async def test_memory_is_held_for_each_portion():
    request = Request()
    await request.answer(names := [f"{number}".ljust(LARGE_NAME) for number in range(3)])
    assert request.responses.bytes_held == sum(size_of(request.make(name)) for name in names)


async def test_a_portion_that_finds_no_memory_is_made_again_when_there_is_some():
    name, other = "x" * LARGE_NAME, Request()
    other.memory.response.set(RESPONSES_BYTES)
    request = Request(responses=other.responses)
    answering = asyncio.create_task(request.answer([name]))
    while not request.made:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert not answering.done()
    other.memory.close()
    assert await asyncio.wait_for(answering, LIMIT_S) == [name]
    assert request.made == [name, name]


async def test_a_response_above_its_limit_ends():
    request = Request(response_bytes_max=1_000_000)
    with pytest.raises(ResponseTooLargeError):
        await request.answer([f"{number}".ljust(LARGE_NAME) for number in range(10)])
    assert len(request.made) == 2


async def test_a_function_that_needs_memory_is_called_again_with_as_much():
    request = Request()
    request_context.set(RequestContext(Lane.ADMIN, "client", None, request.memory))
    services = SimpleNamespace(bulkheads=request.bulkheads)
    services.call = lambda *arguments: Services.call(services, *arguments)
    held = []

    def make(size):
        held.append(size)
        return Needed(500_000) if size < 500_000 else "made"

    assert await Services.call_in_memory(services, make) == "made"
    assert held[1:] == [500_000] and request.responses.bytes_held == 500_000
    request.bulkheads.close()
