"""How much memory a fetch asks for before it reads."""

import asyncio
import uuid
from types import SimpleNamespace

import pytest
from kafka.protocol.consumer import FetchRequest

from spark_log.cluster.security.acl_rules import Rights
from spark_log.config.topic_configs import TopicConfig
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.gateway.access.access import Access
from spark_log.gateway.access.authorization import authorized
from spark_log.gateway.limits.bulkheads import Lane, RequestContext, request_context
from spark_log.gateway.limits.memory_budget import MemoryBudget
from spark_log.gateway.limits.request_memory import RequestMemory
from spark_log.gateway.protocol.wire import encode_response
from spark_log.gateway.records import fetch_requests
from spark_log.gateway.records.fetch_positions import Answer, Asked, _answer
from spark_log.gateway.records.fetch_requests import APIS, _bytes_to_read, fetch
from spark_log.gateway.records.record_streams import BATCH_BYTES
from spark_log.ids import HOME
from spark_log.log.segments.plan import PartitionSnapshot
from spark_log.log.segments.slices import Positions
from tests.support.waiting import LIMIT_S

NONE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID = 0, 3, 100
LARGEST_RECORD = 2_000_000
"""max.message.bytes of the topic."""


async def call(function, *arguments):
    return function(*arguments)


def begin_request(responses):
    """The fetch of this test takes the memory of its response from this budget."""
    memory = RequestMemory(MemoryBudget(1), MemoryBudget(1), responses, 10**9, lambda: None, "me")
    request_context.set(RequestContext(Lane.FETCH, "me", None, memory, None))


def fetch_of_one(version, *, partition, bytes_max, max_wait_ms, **topic):
    """A request for the records of one partition from offset 0, of a topic by name or id."""
    of_partition = FetchRequest.FetchTopic.FetchPartition(
        partition=partition, fetch_offset=0, partition_max_bytes=bytes_max
    )
    request = FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=bytes_max, session_id=0, session_epoch=-1,
        topics=[FetchRequest.FetchTopic(partitions=[of_partition], **topic)],
    )  # fmt: skip
    request.API_VERSION = version
    return request


@pytest.mark.parametrize(
    ("limits", "response_bytes_max", "expected"),
    [
        (
            [1, 1, 1],
            1_000_000_000,
            max(LARGEST_RECORD, 3 * BATCH_BYTES),
        ),  # a batch is sent whole, however few bytes are asked for
        ([5 * BATCH_BYTES, 1], 1_000_000_000, 6 * BATCH_BYTES),
        ([5 * BATCH_BYTES, 1], 1_000, LARGEST_RECORD),
        ([2**31 - 1] * 3, 55 * 1024 * 1024, 55 * 1024 * 1024),
        ([], 1_000, 0),
        ([1], -1, 0),
    ],
)
def test_a_fetch_holds_memory_for_what_it_will_read(limits, response_bytes_max, expected):
    asked = [Asked("flights", uuid.uuid4(), number, 0, limit) for number, limit in enumerate(limits)]
    asked.append(Asked("flights", uuid.uuid4(), len(limits), 0, 1_000_000))
    topic = SimpleNamespace(config=TopicConfig(max_message_bytes=LARGEST_RECORD))
    answers = [Answer(topic=topic, version=(0, 0)) for _ in limits] + [Answer()]  # nothing to be read from the last
    assert _bytes_to_read(asked, answers, response_bytes_max) == expected


def test_a_topic_id_is_not_that_of_a_new_topic_with_its_name():
    forgotten = []
    topics = SimpleNamespace(forget=forgotten.append)
    old, new = uuid.uuid4(), uuid.uuid4()

    def answer(asked_id, topic, position_of, partition=0):
        here = {} if position_of is None else {("t", 0): PartitionSnapshot(position_of, Positions(0, 5), 1)}
        asked = Asked("t", asked_id, partition, 2, 1_000)
        return _answer(topics, asked, {} if topic is None else {"t": topic}, here).error

    first, second = (SimpleNamespace(topic_id=n, uuid=each.hex, partition_count=1) for n, each in ((1, old), (2, new)))
    assert answer(new, second, 2) == answer(uuid.UUID(int=0), second, 2) == NONE
    assert answer(old, second, 2) == UNKNOWN_TOPIC_ID, "the cache has the new topic, and the client the old id"
    assert answer(old, first, 2) == answer(old, first, None) == answer(old, None, None) == UNKNOWN_TOPIC_ID
    assert answer(new, second, 2, partition=1) == answer(uuid.UUID(int=0), first, 2) == UNKNOWN_TOPIC_OR_PARTITION
    assert forgotten


async def test_records_that_are_larger_than_expected_wait_for_memory_without_being_kept(monkeypatch):
    reads, topic = [], SimpleNamespace(config=TopicConfig(max_message_bytes=1_000), topic_id=1)

    def positions(_services, _request, _asked):
        asked = [Asked("t", uuid.UUID(int=0), 0, 0, 1_000_000)]
        return 0, asked, [Answer(topic=topic, version=(0, 0)) for _ in asked], True

    def read(_services, places, left):
        reads.append(left)
        for _, answer in places:
            answer.records = bytes(5_000_000)
        return 0

    monkeypatch.setattr(fetch_requests, "_positions", positions)
    monkeypatch.setattr(fetch_requests, "_read", read)
    responses = MemoryBudget(8_000_000)
    other = responses.hold(lambda: None, "other")
    await other.more(3_000_000)
    begin_request(responses)
    request = fetch_of_one(4, topic="t", partition=0, bytes_max=1_000_000, max_wait_ms=0)
    services = SimpleNamespace(call=call, compute=call)
    task = asyncio.create_task(fetch(services, request, None))
    await asyncio.sleep(0.05)
    assert len(reads) == 1 and responses.bytes_held == 3_000_000
    other.close()
    response = await asyncio.wait_for(task, LIMIT_S)
    assert len(reads) == 2 and responses.bytes_held == 5_000_000
    assert len(response.responses[0].partitions[0].records) == 5_000_000


async def test_records_that_are_too_few_are_read_again_only_after_a_change_of_their_partitions(monkeypatch):
    ends, reads = [5, 5, 5, 6, 6, 9], []
    topic = SimpleNamespace(config=TopicConfig(max_message_bytes=1_000), topic_id=1, store_id=HOME)

    def positions(_services, _request, _asked):
        answer = Answer(topic=topic, version=(0, 0), high_watermark=ends.pop(0))
        return 0, [Asked("t", uuid.UUID(int=0), 0, 0, 1_000_000)], [answer], True

    def read(_services, places, left):
        [(_, answer)] = places
        reads.append(answer.high_watermark)
        answer.records = bytes(100 * answer.high_watermark)
        return left

    async def wait(_fetch, _seen, _timeout_s):
        pass

    monkeypatch.setattr(fetch_requests, "_positions", positions)
    monkeypatch.setattr(fetch_requests, "_read", read)
    begin_request(MemoryBudget(10**7))
    request = FetchRequest(max_wait_ms=60_000, min_bytes=900, max_bytes=1_000_000, topics=[])
    services = SimpleNamespace(call=call, compute=call, fetch_watches=SimpleNamespace(wait=wait))
    response = await asyncio.wait_for(fetch(services, request, None), LIMIT_S)
    assert reads == [5, 6, 9]
    assert len(response.responses[0].partitions[0].records) == 900


@pytest.mark.parametrize("rights", [None, Rights([], allow_everyone_if_no_acl_found=True)])
async def test_a_fetch_by_topic_id_is_answered_without_records_while_the_store_is_away(rights, monkeypatch):
    """With and without ACLs, for which the name of the topic has to be known."""
    topic_id, looked_up, now_s = uuid.uuid4(), [], 1_000.0
    monkeypatch.setattr(fetch_requests, "clock", SimpleNamespace(monotonic_s=lambda: now_s))

    def names(topic_ids):
        looked_up.append(set(topic_ids))
        raise MetadataStoreUnavailableError("away")

    async def wait(_fetch, _seen, _timeout_s):
        nonlocal now_s
        now_s += 0.03  # a change before max_wait_ms is over

    begin_request(MemoryBudget(1_000))
    request = fetch_of_one(13, topic_id=topic_id, partition=7, bytes_max=1_000, max_wait_ms=50)
    services = SimpleNamespace(
        call=call, compute=call, topics=SimpleNamespace(names=names),
        changes=SimpleNamespace(current=lambda: 0), fetch_watches=SimpleNamespace(wait=wait),
    )  # fmt: skip
    client = SimpleNamespace(access=Access(rights, "User:anna", "127.0.0.1"))
    [api] = APIS
    response = await (
        fetch(services, request, client) if rights is None else authorized(api, services, request, client)
    )
    encode_response(response, 13, 1)
    [topic] = response.responses
    [partition] = topic.partitions
    assert looked_up[0] == {topic_id}
    assert (topic.topic_id, partition.partition_index) == (topic_id, 7)
    assert (partition.error_code, partition.high_watermark, partition.records) == (NONE, -1, b"")
    assert rights is not None or len(looked_up) > 1, "the name is looked up again after each change"
