"""Arguments that arrive while a call runs share the next call."""

import asyncio

import pytest

from spark_log.errors import MetadataStoreUnavailableError
from spark_log.gateway.limits.shared_calls import SharedCalls


async def test_arguments_that_wait_share_a_call_and_its_error():
    calls, go_on = [], asyncio.Event()

    async def double(numbers):
        calls.append(list(numbers))
        await go_on.wait()
        if 7 in numbers:
            raise MetadataStoreUnavailableError("seven")
        return [2 * number for number in numbers]

    shared = SharedCalls(double, together_max=3)
    first = shared.submit(1)
    await asyncio.sleep(0)
    waiting = [shared.submit(number) for number in (2, 3, 4, 7, 8)]
    waiting[1].cancel()
    go_on.set()
    results = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert calls == [[1], [2, 3, 4], [7, 8]]
    assert results[:2] == [2, 4]
    assert results[3] == 8
    assert [type(each) for each in results[4:]] == [MetadataStoreUnavailableError] * 2
    assert await shared.submit(5) == 10
    with pytest.raises(MetadataStoreUnavailableError, match="seven"):
        await shared.submit(7)


async def test_an_argument_that_fails_alone_costs_the_others_no_result():
    calls = []

    async def invert(numbers):
        calls.append(len(numbers))
        return [1 / number for number in numbers]

    shared = SharedCalls(invert, together_max=128)
    waiting = [shared.submit(number) for number in (*range(1, 65), 0, *range(65, 128))]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert type(results.pop(64)) is ZeroDivisionError
    assert results == [1 / number for number in range(1, 128)]
    assert len(calls) == 15, "two calls for each time that 128 can be halved"
