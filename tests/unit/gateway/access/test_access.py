"""The cache of ACLs."""

import asyncio
from types import SimpleNamespace

import pytest

from spark_log import clock
from spark_log.errors import MetadataStoreUnavailableError, StoreChangedError
from spark_log.gateway.access.access import Authorizer
from tests.support.waiting import LIMIT_S


class Gateway:
    """Each read of the ACLs calls `answer` with its number. The clock is the test's."""

    def __init__(self, monkeypatch, answer):
        self.now_s, self.reads = 100.0, 0
        monkeypatch.setattr(clock, "monotonic_s", lambda: self.now_s)

        async def call(_read):
            self.reads += 1
            await answer(self.reads)
            return ()

        self.authorizer = Authorizer(SimpleNamespace(), call, frozenset(), everyone=False)

    async def access(self):
        return await self.authorizer.access("User:ann", "127.0.0.1")


async def test_acls_that_change_while_they_are_read_are_read_again(monkeypatch):
    async def answer(number):
        if number == 1:
            gateway.authorizer.forget()

    gateway = Gateway(monkeypatch, answer)
    for _ in range(3):
        await gateway.access()
    assert gateway.reads == 2


async def test_requests_while_the_store_is_down_use_the_last_acls_and_wait_for_one_read_at_most(monkeypatch):
    async def answer(number):
        if number > 1:
            await asyncio.sleep(0)
            gateway.now_s += 10.0
            raise MetadataStoreUnavailableError("no answer")

    gateway = Gateway(monkeypatch, answer)
    first = await gateway.access()
    gateway.now_s += 5.0
    assert await asyncio.gather(*(gateway.access() for _ in range(6))) == [first] * 6
    assert gateway.reads == 2


async def test_no_request_waits_for_a_store_that_has_not_answered(monkeypatch):
    answers = asyncio.Event()

    async def answer(number):
        if number == 2:
            raise MetadataStoreUnavailableError("no answer")
        if number > 2:
            await answers.wait()

    gateway = Gateway(monkeypatch, answer)
    first = await gateway.access()
    gateway.authorizer.forget()
    assert await gateway.access() == first, "the second read has failed"
    gateway.now_s += 5.0
    for _ in range(1_000):  # the third read hangs
        async with asyncio.timeout(LIMIT_S):
            assert await gateway.access() == first
        await asyncio.sleep(0)
    assert gateway.reads == 3
    answers.set()
    while (await gateway.access()).rights is first.rights:
        await asyncio.sleep(0)
    assert gateway.reads == 3


async def test_acls_from_before_an_outage_are_read_again_before_a_later_request(monkeypatch):
    async def answer(number):
        if number == 2:
            raise MetadataStoreUnavailableError("no answer")
        if number >= 4:
            raise StoreChangedError("another store answers")

    gateway = Gateway(monkeypatch, answer)
    first = await gateway.access()
    gateway.now_s += 5.0
    assert await gateway.access() == first
    gateway.now_s += 3600.0  # no request meanwhile
    assert (await gateway.access()).rights is not first.rights
    gateway.now_s += 5.0
    for _ in range(2):
        with pytest.raises(StoreChangedError):
            await gateway.access()


async def test_requests_before_the_first_acls_fail_together_while_the_store_is_down(monkeypatch):
    async def answer(_number):
        await asyncio.sleep(0)
        gateway.now_s += 10.0
        raise MetadataStoreUnavailableError("no answer")

    gateway = Gateway(monkeypatch, answer)
    outcomes = await asyncio.gather(*(gateway.access() for _ in range(6)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [ConnectionAbortedError] * 6
    assert gateway.reads == 1


async def test_acls_are_read_briefly_once_some_are_known():
    """`Store.read` repeats a read for ten seconds, and requests wait for it."""
    limits = []
    store = SimpleNamespace(read=lambda _body, *, timeout_ms=None: limits.append(timeout_ms) or [])

    async def call(read):
        return read()

    authorizer = Authorizer(store, call, frozenset(), everyone=False)
    for _ in range(2):
        await authorizer.access("User:ann", "127.0.0.1")
        authorizer.forget()
    assert limits == [None, 1_000]
