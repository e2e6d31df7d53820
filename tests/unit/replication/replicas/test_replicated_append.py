"""How long an append is repeated for a batch whose replicas do not get the records."""

from types import SimpleNamespace

import pytest

from spark_log.errors import NotEnoughReplicasError
from spark_log.log.append.append_transaction import AppendRequest, AppendResult
from spark_log.log.append.rules import Appended, Rejected
from spark_log.replication.replicas import replicated_append

TIMEOUT_MS = 30_000


@pytest.fixture
def time(monkeypatch):
    """A clock that moves when the code sleeps; append transactions of `append_s` refuse the batch of partition 0."""
    time = SimpleNamespace(now_s=0.0, append_s=0.0, appended=[])

    def sleep(seconds):
        time.now_s += seconds

    def append(_store, request, *, timeout_ms):
        partitions = [batch.partition for batch in request.batches]
        time.appended.append(partitions)
        time.now_s += time.append_s
        refused = Rejected(NotEnoughReplicasError("behind"))
        return AppendResult([Appended(0, 1) if partition else refused for partition in partitions], {})

    monkeypatch.setattr(replicated_append, "clock", SimpleNamespace(monotonic_s=lambda: time.now_s, sleep_s=sleep))
    monkeypatch.setattr(replicated_append, "run_append_transaction", append)
    monkeypatch.setattr(replicated_append, "_read_partitions", lambda *_: {(1, 0): None})
    monkeypatch.setattr(replicated_append, "_prepare_retry", lambda _cluster, _topics, batch, *_: (batch, False))
    return time


def outcomes(**options):
    batches = [SimpleNamespace(topic_id=1, partition=partition) for partition in (0, 1)]
    appends = replicated_append.ReplicatedAppends(SimpleNamespace(store=None))
    result = appends.append(AppendRequest(batches, **options), {}, TIMEOUT_MS)
    return [type(outcome) for outcome in result.outcomes]


def test_outcomes_do_not_wait_longer_than_the_retries_of_the_request(time):
    assert outcomes(retry_ms=200) == [Rejected, Appended]
    assert 0.2 <= time.now_s < 0.6
    assert time.appended == [[0, 1], *[[0]] * (len(time.appended) - 1)]


def test_a_slow_append_is_repeated_once_all_the_same(time):
    time.append_s = 1.0
    assert outcomes(retry_ms=200) == [Rejected, Appended]
    assert time.appended == [[0, 1], [0]]


def test_a_request_without_a_limit_is_repeated_until_the_timeout(time):
    assert outcomes() == [Rejected, Appended]
    assert time.now_s * 1000 >= TIMEOUT_MS - 1
