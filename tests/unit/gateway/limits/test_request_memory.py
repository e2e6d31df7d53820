"""A request holds memory for its response step by step, and all of its memory until no thread works for it."""

import pytest

from spark_log.gateway.limits.memory_budget import UNCOUNTED_BYTES, MemoryBudget
from spark_log.gateway.limits.request_memory import RequestMemory, ResponseTooLargeError

FRAMES, RECORDS = MemoryBudget(1_000_000), MemoryBudget(1_000_000)


def memory_in(responses, response_bytes_max=10_000_000, client="client"):
    return RequestMemory(FRAMES, RECORDS, responses, response_bytes_max, lambda: None, client)


async def test_a_response_is_counted_from_its_first_byte_as_soon_as_it_is_not_small():
    memory = memory_in(responses := MemoryBudget(1_000_000))
    await memory.grow_response(UNCOUNTED_BYTES - 100)
    assert responses.bytes_held == 0
    assert memory.grow_response_at_once(200)
    assert responses.bytes_held == UNCOUNTED_BYTES + 100


async def test_a_response_above_the_limit_is_refused():
    memory = memory_in(responses := MemoryBudget(1_000_000), response_bytes_max=100_000)
    await memory.grow_response(60_000)
    with pytest.raises(ResponseTooLargeError, match="more than 100000 bytes"):
        memory.grow_response_at_once(60_000)
    with pytest.raises(ResponseTooLargeError):
        await memory.grow_response(60_000)
    assert responses.bytes_held == 60_000


def test_a_response_that_finds_no_room_changes_nothing():
    other, memory = memory_in(responses := MemoryBudget(100_000)), memory_in(responses, client="other")
    assert other.grow_response_at_once(80_000)
    assert not memory.grow_response_at_once(40_000)
    assert (memory.response_bytes, responses.bytes_held) == (0, 80_000)


def test_memory_is_kept_until_the_threads_of_a_request_that_was_cancelled_have_ended():
    memory = memory_in(responses := MemoryBudget(100_000))
    memory.response.set(50_000)
    memory.begin_thread()
    memory.close()
    assert responses.bytes_held == 50_000
    memory.end_thread()
    assert responses.bytes_held == 0 and memory.response.closed
