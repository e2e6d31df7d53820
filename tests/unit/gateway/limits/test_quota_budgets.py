"""The use of quotas that a gateway shares with the others."""

from types import SimpleNamespace

import pytest

from spark_log import clock
from spark_log.cluster.quotas.rules import Bucket
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.gateway.limits.quota_budgets import QuotaBudgets

CLIENTS = [Bucket("producer_byte_rate", (("client-id", f"invented-{number}"),), rate=1.0) for number in range(5_000)]


@pytest.fixture
def gateway(monkeypatch):
    """The budgets of a gateway, and what they share: at first, the store does not answer. The clock stands still."""

    async def call(_record_use, _store, use):
        found.shared.append(dict(use))
        if len(found.shared) == 1:
            raise MetadataStoreUnavailableError("no answer")
        return use

    found = SimpleNamespace(now_s=100.0, shared=[], budgets=QuotaBudgets(SimpleNamespace(), call))
    monkeypatch.setattr(clock, "monotonic_s", lambda: found.now_s)
    return found


async def share(budgets):
    try:
        await budgets._share()
    except MetadataStoreUnavailableError:
        return


async def test_invented_client_ids_become_few_rows_at_a_time(gateway):
    budgets, shared = gateway.budgets, gateway.shared
    for number, bucket in enumerate(CLIENTS):
        budgets.charge(bucket, 1.0 + number)
    budgets.charge(CLIENTS[7], 10_000.0)
    await share(budgets)
    await share(budgets)
    assert list(shared[0]) == list(shared[1]) == [CLIENTS[7], *CLIENTS[:-100:-1]], "the most use first"
    await share(budgets)
    assert list(shared[2]) == CLIENTS[-100:-200:-1], "then that of the others"
    gateway.now_s += 4_000.0
    await share(budgets)
    gateway.now_s += 4_000.0
    await share(budgets)
    await share(budgets)
    assert [len(use) for use in shared[3:]] == [100, 100], "use that is paid for is not shared later"
    assert not budgets._unshared_s


async def test_all_use_is_shared_in_the_end(gateway):
    budgets, shared = gateway.budgets, gateway.shared
    for bucket in CLIENTS[:1_000]:
        budgets.charge(bucket, 2.0)
    while budgets._unshared_s:
        await share(budgets)
    assert len(shared) == 11, "the first one has failed"
    assert dict.fromkeys(CLIENTS[:1000], 2.0) == {b: s for use in shared[1:] for b, s in use.items()}
