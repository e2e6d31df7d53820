"""The cache of ACLs."""

import asyncio
from types import SimpleNamespace

import pytest

from spark_log import clock
from spark_log.errors import MetadataStoreUnavailableError, StoreChangedError
from spark_log.gateway.access.access import Authorizer
from tests.support.waiting import LIMIT_S


def test_acls_that_change_while_they_are_read_are_read_again():
    async def story():
        reads = []

        async def call(_read):
            reads.append(1)
            if len(reads) == 1:
                authorizer.forget()
            return ()

        authorizer = Authorizer(SimpleNamespace(), call, frozenset(), everyone=False)
        for _ in range(3):
            await authorizer.access("User:ann", "127.0.0.1")
        assert len(reads) == 2

    asyncio.run(story())


def test_requests_while_the_store_is_down_use_the_last_acls_and_wait_for_one_read_at_most(monkeypatch):
    """The clock is the test's: a read that fails takes ten seconds."""

    async def story():
        now_s, reads = [100.0], []
        monkeypatch.setattr(clock, "monotonic_s", lambda: now_s[0])

        async def call(_read):
            reads.append(1)
            if len(reads) > 1:
                await asyncio.sleep(0)
                now_s[0] += 10.0
                raise MetadataStoreUnavailableError("no answer")
            return ()

        authorizer = Authorizer(SimpleNamespace(), call, frozenset(), everyone=False)
        first = await authorizer.access("User:ann", "127.0.0.1")
        now_s[0] += 5.0
        several = await asyncio.gather(*(authorizer.access("User:ann", "127.0.0.1") for _ in range(6)))
        assert several == [first] * 6
        assert len(reads) == 2

    asyncio.run(story())


def test_no_request_waits_for_a_store_that_has_not_answered(monkeypatch):
    async def story():
        now_s, answers, reads = [100.0], asyncio.Event(), []
        monkeypatch.setattr(clock, "monotonic_s", lambda: now_s[0])

        async def call(_read):
            reads.append(1)
            if len(reads) == 2:
                raise MetadataStoreUnavailableError("no answer")
            if len(reads) > 2:
                await answers.wait()
            return ()

        authorizer = Authorizer(SimpleNamespace(), call, frozenset(), everyone=False)
        first = await authorizer.access("User:ann", "127.0.0.1")
        authorizer.forget()
        assert await authorizer.access("User:ann", "127.0.0.1") == first, "the second read has failed"
        now_s[0] += 5.0
        for _ in range(1_000):  # the third read hangs
            async with asyncio.timeout(LIMIT_S):
                assert await authorizer.access("User:ann", "127.0.0.1") == first
            await asyncio.sleep(0)
        assert len(reads) == 3
        answers.set()
        while (await authorizer.access("User:ann", "127.0.0.1")).rights is first.rights:
            await asyncio.sleep(0)
        assert len(reads) == 3

    asyncio.run(story())


def test_acls_from_before_an_outage_are_read_again_before_a_later_request(monkeypatch):
    async def story():
        now_s, reads = [100.0], []
        monkeypatch.setattr(clock, "monotonic_s", lambda: now_s[0])

        async def call(_read):
            reads.append(1)
            if len(reads) == 2:
                raise MetadataStoreUnavailableError("no answer")
            if len(reads) == 4:
                raise StoreChangedError("another store answers")
            return ()

        authorizer = Authorizer(SimpleNamespace(), call, frozenset(), everyone=False)
        first = await authorizer.access("User:ann", "127.0.0.1")
        now_s[0] += 5.0
        assert await authorizer.access("User:ann", "127.0.0.1") == first
        now_s[0] += 3600.0  # no request meanwhile
        assert (await authorizer.access("User:ann", "127.0.0.1")).rights is not first.rights
        now_s[0] += 5.0
        for _ in range(2):
            with pytest.raises(StoreChangedError):
                await authorizer.access("User:ann", "127.0.0.1")
            reads.pop()

    asyncio.run(story())


def test_requests_before_the_first_acls_fail_together_while_the_store_is_down(monkeypatch):
    async def story():
        now_s, reads = [100.0], []
        monkeypatch.setattr(clock, "monotonic_s", lambda: now_s[0])

        async def call(_read):
            reads.append(1)
            await asyncio.sleep(0)
            now_s[0] += 10.0
            raise MetadataStoreUnavailableError("no answer")

        authorizer = Authorizer(SimpleNamespace(), call, frozenset(), everyone=False)
        requests = [authorizer.access("User:ann", "127.0.0.1") for _ in range(6)]
        found = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(each) for each in found] == [ConnectionAbortedError] * 6
        assert len(reads) == 1

    asyncio.run(story())


def test_acls_are_read_briefly_once_some_are_known():
    """`Store.read` repeats a read for ten seconds, and requests wait for it."""

    async def story():
        limits = []
        store = SimpleNamespace(read=lambda _body, *, timeout_ms=None: limits.append(timeout_ms) or [])

        async def call(read):
            return read()

        authorizer = Authorizer(store, call, frozenset(), everyone=False)
        for _ in range(2):
            await authorizer.access("User:ann", "127.0.0.1")
            authorizer.forget()
        assert limits == [None, 1_000]

    asyncio.run(story())
