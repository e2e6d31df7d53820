"""The use of quotas that a gateway shares with the others."""

import asyncio
from types import SimpleNamespace

from spark_log import clock
from spark_log.cluster.quotas.rules import Bucket
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.gateway.limits.quota_budgets import QuotaBudgets

CLIENTS = [Bucket("producer_byte_rate", (("client-id", f"invented-{number}"),), rate=1.0) for number in range(5_000)]


def shares(monkeypatch, story):
    """Run the story with budgets and what they share. Its clock stands still."""
    now_s, shared = [100.0], []
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s[0])

    async def call(_record_use, _store, use):
        shared.append(dict(use))
        if len(shared) == 1:
            raise MetadataStoreUnavailableError("no answer")
        return use

    async def run():
        await story(QuotaBudgets(SimpleNamespace(), call), shared, now_s)

    asyncio.run(run())


async def share(budgets):
    try:
        await budgets._share()
    except MetadataStoreUnavailableError:
        return


def test_invented_client_ids_become_few_rows_at_a_time(monkeypatch):
    async def story(budgets, shared, now_s):
        for number, bucket in enumerate(CLIENTS):
            budgets.charge(bucket, 1.0 + number)
        budgets.charge(CLIENTS[7], 10_000.0)
        await share(budgets)
        await share(budgets)
        assert list(shared[0]) == list(shared[1]) == [CLIENTS[7], *CLIENTS[:-100:-1]], "the most use first"
        await share(budgets)
        assert list(shared[2]) == CLIENTS[-100:-200:-1], "then that of the others"
        now_s[0] += 4_000.0
        await share(budgets)
        now_s[0] += 4_000.0
        await share(budgets)
        await share(budgets)
        assert [len(use) for use in shared[3:]] == [100, 100], "use that is paid for is not shared later"
        assert not budgets._unshared_s

    shares(monkeypatch, story)


def test_all_use_is_shared_in_the_end(monkeypatch):
    async def story(budgets, shared, _now_s):
        for bucket in CLIENTS[:1_000]:
            budgets.charge(bucket, 2.0)
        while budgets._unshared_s:
            await share(budgets)
        assert len(shared) == 11, "the first one has failed"
        assert dict.fromkeys(CLIENTS[:1000], 2.0) == {b: s for use in shared[1:] for b, s in use.items()}

    shares(monkeypatch, story)
