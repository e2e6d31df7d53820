"""Polls of share groups by many connections of a gateway: they share transactions, and one does not stop the others."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from spark_log.errors import UnknownTopicOrPartitionError
from spark_log.gateway.limits.bulkheads import CpuTime
from spark_log.gateway.shares import polls_together, share_requests
from spark_log.gateway.shares.polls_together import PollsTogether
from spark_log.groups.share import looks, rows
from spark_log.groups.share.acquisition_rules import Request
from spark_log.groups.share.looks import look
from spark_log.groups.share.polling import SharePolls
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.service import Poll
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.share_members import ShareMember, session_of
from tests.support.waiting import LIMIT_S

MEMBERS = 10
WAIT_S = 2 * LIMIT_S


@pytest.fixture
def jobs(cluster, produce):
    """Topics `fast` and `slow`, with 100 records each, and members of their groups."""
    producer, configs = produce(), {"share.auto.offset.reset": "earliest"}
    for topic in ("fast", "slow"):
        create_topic(cluster, topic)
        cluster.store.transact(lambda connection, group=topic: rows.save_configs(connection, group, configs))
        for number in range(100):
            producer.send(topic, b"%d" % number)
    producer.flush()
    return {topic: ShareMember(cluster, (topic,), topic) for topic in ("fast", "slow")}


@pytest.fixture
def transactions(monkeypatch):
    """The numbers of polls in each transaction."""
    made, run_polls = [], polls_together.run_polls
    monkeypatch.setattr(
        polls_together, "run_polls", lambda store, polls: made.append(len(polls)) or run_polls(store, polls)
    )
    return made


class Requests:
    """Requests that a gateway runs together."""

    def __init__(self, cluster, reads=None):
        self.polls = SharePolls(cluster, reads or ShareReads(cluster))
        self._together = PollsTogether(cluster.store, asyncio.to_thread)

    async def poll(self, member, member_id="m1", cpu=None):
        """Return the number of acquired records, of which one is asked for."""
        steps = self.polls.steps(member.group, Request(member_id, 1, whole_batches=False), member.assigned, {})
        return await self.run(steps, cpu), member_id

    async def run(self, steps, cpu=None):
        result = await self._together.run(steps, asyncio.to_thread, cpu)
        return sum(r.length for taken in result.taken for r, _ in taken.parts)


async def test_polls_that_arrive_meanwhile_share_a_transaction(cluster, jobs, transactions, monkeypatch):
    monkeypatch.setattr(looks, "_REMEMBERED_S", WAIT_S)  # else a poll looks at the store by itself
    requests = Requests(cluster)
    await requests.poll(jobs["fast"])
    transactions.clear()
    answers = await asyncio.gather(*(requests.poll(jobs["fast"], f"m{number}") for number in range(MEMBERS)))
    assert answers == [(1, f"m{number}") for number in range(MEMBERS)]
    assert transactions == [MEMBERS]


async def test_a_read_that_hangs_does_not_stop_the_groups_of_other_topics(cluster, jobs, monkeypatch):
    reads, hangs = ShareReads(cluster), threading.Event()
    read = reads._read

    def read_or_hang(key, name, *more):
        if name == "slow":
            hangs.wait(WAIT_S)
        return read(key, name, *more)

    monkeypatch.setattr(reads, "_read", read_or_hang)
    requests = Requests(cluster, reads)
    hangs.set()
    for topic in jobs:
        await requests.poll(jobs[topic])
    for key in jobs["slow"].assigned:
        reads.forget(key)
    hangs.clear()
    slow = [asyncio.create_task(requests.poll(jobs["slow"], f"m{number}")) for number in range(2)]
    try:
        for _ in range(3):
            assert await asyncio.wait_for(requests.poll(jobs["fast"]), LIMIT_S) == (1, "m1")
        assert not any(task.done() for task in slow)
    finally:
        hangs.set()
    assert await asyncio.gather(*slow) == [(1, "m0"), (1, "m1")]


async def test_a_poll_that_fails_does_not_fail_those_of_the_same_transaction(cluster, jobs):
    requests = Requests(cluster)

    def broken():
        yield Poll("fast", "m2", {(1, 0): None})  # an error that no rule foresees

    await requests.poll(jobs["fast"])
    good = [asyncio.create_task(requests.poll(jobs["fast"], f"m{number}")) for number in range(2)]
    with pytest.raises(TypeError):
        await requests.run(broken())
    assert await asyncio.gather(*good) == [(1, "m0"), (1, "m1")]


async def test_the_steps_get_the_error_of_their_transaction(cluster, jobs, monkeypatch):
    def refused(_store, _polls):
        raise UnknownTopicOrPartitionError("refused")

    monkeypatch.setattr(polls_together, "run_polls", refused)
    with pytest.raises(UnknownTopicOrPartitionError, match="refused"):
        await Requests(cluster).poll(jobs["fast"])


async def test_computations_count_for_the_quota_of_the_client(cluster, jobs):
    requests, cpu = Requests(cluster), CpuTime()
    await requests.poll(jobs["fast"])
    await requests.poll(jobs["fast"], cpu=cpu)
    assert cpu.seconds > 0


async def test_records_of_a_request_whose_client_has_gone_are_released(cluster, jobs, monkeypatch):
    """The connection ends while the transaction that acquires them runs."""
    member, requests, session = jobs["fast"], Requests(cluster), session_of("fast", "m1")
    services = SimpleNamespace(shares=SimpleNamespace(polls=requests.polls), changes=cluster.store.changes)
    run_polls, acquired, goes_on = polls_together.run_polls, threading.Event(), threading.Event()

    def run_slowly(store, polls):
        outcomes = run_polls(store, polls)
        acquired.set()
        goes_on.wait(WAIT_S)
        return outcomes

    monkeypatch.setattr(polls_together, "run_polls", run_slowly)

    def unfinished_and_available():
        [offer] = look(cluster.store, "fast").offers.values()
        return offer.unfinished, offer.available

    steps = share_requests._attempt(services, session, Request("m1", 5), member.assigned, {})
    task = asyncio.create_task(requests.run(steps))
    await asyncio.to_thread(acquired.wait, WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert session.end() == {}
    assert unfinished_and_available()[1] == 0
    goes_on.set()
    await asyncio.gather(*requests._together._tasks)
    unfinished, available = unfinished_and_available()
    assert unfinished == available > 0


def test_a_read_that_hangs_does_not_stop_other_partitions_of_its_topic(cluster, produce, monkeypatch):
    create_topic(cluster, "wide", 2)
    configs = {"share.auto.offset.reset": "earliest"}
    cluster.store.transact(lambda connection: rows.save_configs(connection, "wide", configs))
    producer = produce()
    for partition in (0, 1):
        for _ in range(10):
            producer.send("wide", b"x", partition=partition)
    producer.flush()
    member, reads, hangs = ShareMember(cluster, ("wide",), "wide"), ShareReads(cluster), threading.Event()
    read, begun = reads._read, threading.Event()

    def read_or_hang(key, *more):
        if key[1] == 0:
            begun.set()
            hangs.wait(WAIT_S)
        return read(key, *more)

    monkeypatch.setattr(reads, "_read", read_or_hang)
    polls = SharePolls(cluster, reads)
    results = []

    def poll(name):
        results.append(polls.attempt("wide", Request(name, 20, whole_batches=False), member.assigned, {}))

    stuck = threading.Thread(target=poll, args=("m1",))
    stuck.start()
    try:
        assert begun.wait(WAIT_S)
        poll("m2")
        assert [taken.key[1] for taken in results[0].taken] == [1]
    finally:
        hangs.set()
        stuck.join()
