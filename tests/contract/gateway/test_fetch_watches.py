"""Waiting fetches at one gateway: what a change of the store costs, and which of them are answered."""

import asyncio
import contextlib
import uuid

import pytest

from spark_log.errors import MetadataStoreUnavailableError
from spark_log.gateway import shared_watches
from spark_log.gateway.gateway_settings import GatewaySettings
from spark_log.gateway.limits.bulkheads import Lane, RequestContext, request_context
from spark_log.gateway.limits.memory_budget import MemoryBudget
from spark_log.gateway.limits.request_memory import RequestMemory
from spark_log.gateway.records import fetch_positions, fetch_requests
from spark_log.gateway.records.fetch_positions import FetchWatches
from spark_log.gateway.services import Services
from spark_log.gateway.topic_stores import TopicStores
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from tests.support.gateway_wire import fetch_request
from tests.support.stores import topics_view
from tests.support.waiting import LIMIT_S, until

FETCHES = 40
WAIT_MS = int(2 * LIMIT_S * 1000)
"""The time limit of a fetch that must not reach it."""


@pytest.fixture
def reads(monkeypatch):
    """The reads of positions, each as the number of its partitions."""
    made, of_partitions = [], TopicStores.of_partitions

    def counted(self, partitions, *arguments, **named):
        made.append(len(partitions))
        return of_partitions(self, partitions, *arguments, **named)

    monkeypatch.setattr(TopicStores, "of_partitions", counted)
    return made


class Fetches:
    """Fetches of a gateway, each a task."""

    def __init__(self, services):
        self.services = services
        self.responses = MemoryBudget(10**8)

    def begin(self, topic, topic_id=None, max_wait_ms=WAIT_MS, client="client"):
        request = fetch_request(topic, max_bytes=1_000, max_wait_ms=max_wait_ms, min_bytes=1, leader_epoch=0)
        request.API_VERSION = 11
        if topic_id is not None:
            request.API_VERSION, request.topics[0].topic_id = 13, topic_id
        return asyncio.create_task(self._fetch(request, client))

    def waiting(self):
        """The fetches that wait for a change."""
        return [each for watch in self.watches.values() for each in watch.waiting if not each.woken.done()]

    @property
    def watches(self):
        watches = self.services.fetch_watches
        return watches._common._watches | watches._of_clients._watches

    async def _fetch(self, request, client):
        memory = RequestMemory(MemoryBudget(1), MemoryBudget(1), self.responses, 10**9, lambda: None, client)
        request_context.set(RequestContext(Lane.FETCH, client, None, memory))
        response = await fetch_requests.fetch(self.services, request, None)
        [topic] = response.responses
        [partition] = topic.partitions
        return partition


@contextlib.asynccontextmanager
async def fetches_of(cluster):
    services = Services.of(cluster, GatewaySettings("127.0.0.1", 1, "127.0.0.1", 1), {})
    services.changes.start()
    try:
        yield Fetches(services)
    finally:
        services.changes.stop()
        services.bulkheads.close()
        services.stores.close()
        services.log.close()


async def quiet(reads):
    """Until what was committed is read: PostgreSQL announces commits a moment later."""
    before = None
    while len(reads) != before:
        before = len(reads)
        await asyncio.sleep(0.2)


async def test_one_read_after_a_commit_serves_all_waiting_fetches(cluster, produce, reads):
    create_topic(cluster, "t")
    create_topic(cluster, "other")
    producer = produce()
    async with fetches_of(cluster) as fetches:
        tasks = [fetches.begin("t") for _ in range(FETCHES)]
        await until(lambda: len(reads) >= FETCHES)
        await quiet(reads)
        reads.clear()
        await asyncio.to_thread(producer.send("other", b"x", partition=0).get)
        await until(lambda: reads)
        await quiet(reads)
        assert len(reads) < FETCHES / 4
        assert not any(task.done() for task in tasks)
        await asyncio.to_thread(producer.send("t", b"x", partition=0).get)
        answers = await asyncio.wait_for(asyncio.gather(*tasks), LIMIT_S)
        assert all(each.records and each.high_watermark == each.last_stable_offset == 1 for each in answers)


NONE, UNKNOWN_TOPIC_OR_PARTITION, FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_ID = 0, 3, 74, 100


@pytest.mark.parametrize(
    ("change", "by_name", "by_id"),
    [
        ("records", {NONE}, {NONE}),
        ("deletion", {UNKNOWN_TOPIC_OR_PARTITION}, {UNKNOWN_TOPIC_ID}),
        ("new topic", {UNKNOWN_TOPIC_OR_PARTITION, NONE}, {UNKNOWN_TOPIC_ID}),
        ("new leader", {FENCED_LEADER_EPOCH}, {FENCED_LEADER_EPOCH}),
    ],
)
async def test_each_change_of_the_partition_answers_a_waiting_fetch(cluster, produce, change, by_name, by_id):
    topic, view, producer = create_topic(cluster, "t"), topics_view(cluster), produce()

    def apply():
        if change in ("deletion", "new topic"):
            delete_topic(cluster, "t")
        if change == "new topic":
            create_topic(cluster, "t")
        if change == "new leader":
            raised = t.partition.update().values(leader_epoch=t.partition.c.leader_epoch + 1)
            view.store.transact(lambda connection: connection.execute(raised), announce=True)
        if change in ("records", "new topic"):
            producer.send("t", b"x", partition=0).get()

    async with fetches_of(cluster) as fetches:
        tasks = [fetches.begin("t"), fetches.begin("t", uuid.UUID(hex=topic.uuid))]
        await until(lambda: len(fetches.waiting()) == 2)
        await asyncio.to_thread(apply)
        answers = await asyncio.wait_for(asyncio.gather(*tasks), LIMIT_S)
        for answer, codes in zip(answers, (by_name, by_id), strict=True):
            assert answer.error_code in codes
            assert bool(answer.records) == (answer.error_code == NONE)


async def test_a_client_that_waits_for_many_partitions_shares_the_reads_for_the_further_ones_with_nobody(
    cluster, monkeypatch
):
    """Three hundred fetches of a hundred partitions each took others half a second of each change."""
    monkeypatch.setattr(fetch_positions, "_SMALL_PARTITIONS_MAX", 2)
    create_topic(cluster, "t")
    async with fetches_of(cluster) as fetches:
        tasks = [fetches.begin("t", client=client) for client in ("a", "a", "a", "a", "b")]
        await until(lambda: len(fetches.waiting()) == 5)
        assert {client: len(watch.waiting) for (_, client), watch in fetches.watches.items()} == {"": 3, "a": 2}
        for task in tasks:
            task.cancel()
        await until(lambda: not fetches.waiting())
        assert not fetches.services.fetch_watches._partitions


async def test_a_fetch_without_news_is_answered_at_its_own_time_out(cluster):
    create_topic(cluster, "t")
    async with fetches_of(cluster) as fetches:
        long = fetches.begin("t")
        await until(fetches.waiting)
        answer = await asyncio.wait_for(fetches.begin("t", max_wait_ms=50), LIMIT_S)
        assert (answer.error_code, answer.high_watermark, answer.records) == (NONE, 0, b"")
        assert len(fetches.waiting()) == 1
        long.cancel()
        await until(lambda: not fetches.waiting())


async def test_fetches_go_on_after_the_common_read_has_failed(cluster, produce, monkeypatch):
    for topic in ("t", "other"):
        create_topic(cluster, topic)
    producer, look = produce(), FetchWatches._look
    failures = [MetadataStoreUnavailableError("away"), ValueError("unforeseen")]

    def fails(self, fetches):
        if failures:
            raise failures.pop()
        return look(self, fetches)

    monkeypatch.setattr(FetchWatches, "_look", fails)
    monkeypatch.setattr(shared_watches, "PAUSE", shared_watches.Pause(0.0, 2.0, 0.01))
    async with fetches_of(cluster) as fetches:
        task = fetches.begin("t")
        for left in (1, 0):
            await until(fetches.waiting)
            await asyncio.to_thread(producer.send("other", b"x", partition=0).get)
            await until(lambda left=left: len(failures) <= left)
        await until(fetches.waiting)
        await asyncio.to_thread(producer.send("t", b"x", partition=0).get)
        assert (await asyncio.wait_for(task, LIMIT_S)).records
