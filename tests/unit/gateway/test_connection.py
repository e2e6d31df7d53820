"""A connection takes memory for the frames that it reads, and a thread for requests of many elements. It ends when its
client has gone, whatever it was doing, and keeps no frame that it has answered.
"""

import asyncio
import logging
import struct
import tracemalloc
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import pytest
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from spark_log.cluster.quotas.rules import PRODUCER_BYTE_RATE, entity_of
from spark_log.gateway.access.entry import Admitted
from spark_log.gateway.api import Api
from spark_log.gateway.client_reader import ClientReader, read_start
from spark_log.gateway.connection import Connection
from spark_log.gateway.counters import Counters
from spark_log.gateway.gateway_settings import GatewaySettings
from spark_log.gateway.limits import memory_budget
from spark_log.gateway.limits.bulkheads import Bulkheads, Lane, request_context
from spark_log.gateway.limits.memory_budget import MemoryBudget
from spark_log.gateway.limits.quota_budgets import QuotaBudgets
from spark_log.gateway.limits.request_memory import RequestMemory
from spark_log.gateway.protocol.request_limits import ELEMENT_BYTES, ON_LOOP_ELEMENTS, RECORDS
from spark_log.gateway.protocol.wire import MalformedRequestError
from tests.support.costly_requests import produce_of
from tests.support.gateway_wire import frame_of
from tests.support.waiting import LIMIT_S, until


class Writer:
    def __init__(self, reader):
        self.transport, self.abort = self, partial(reader.set_exception, ConnectionResetError())

    def get_extra_info(self, _name):
        return "127.0.0.1", 1

    def write(self, _data):
        pass

    def fail(self, _data):
        raise ConnectionResetError

    async def drain(self):
        pass

    async def reset(self):
        raise ConnectionResetError

    def close(self):
        pass


class StalledWriter(Writer):
    """Its client takes bytes only when the test says so."""

    def __init__(self, reader):
        super().__init__(reader)
        self.unsent_bytes, self.is_stalled, self.takes = 0, asyncio.Event(), asyncio.Event()

    def get_write_buffer_size(self):
        return self.unsent_bytes

    def write(self, data):
        self.unsent_bytes += len(data)

    async def drain(self):
        self.is_stalled.set()
        await self.takes.wait()


class Budget(MemoryBudget):
    has_given = False

    async def take(self, hold, size):
        await super().take(hold, size)
        self.has_given = True


class CountedBulkheads(Bulkheads):
    def __init__(self):
        super().__init__()
        self.lanes = []

    async def run(self, lane, *arguments, **keywords):
        self.lanes.append(lane)
        return await super().run(lane, *arguments, **keywords)


@asynccontextmanager
async def served(api, data, frames_bytes=1_000_000, writer=Writer, **settings):
    """A connection that has sent this."""
    services = SimpleNamespace(
        settings=GatewaySettings("127.0.0.1", 1, "127.0.0.1", 1, **settings), counters=Counters(), authorizer=None,
        quotas=QuotaBudgets(None, None), frames=Budget(frames_bytes), records=MemoryBudget(1),
        responses=MemoryBudget(1), bulkheads=CountedBulkheads(),
    )  # fmt: skip
    services.reader = ClientReader(asyncio.get_running_loop())
    services.reader.feed_data(data)
    services.writer = writer(services.reader)
    services.connection = Connection(services, {api.key: api}, Admitted(services.reader, services.writer))
    services.serving = asyncio.create_task(services.connection.serve())
    try:
        yield services
    finally:
        services.reader.feed_eof()
        await asyncio.wait([services.serving], timeout=60)
        services.bulkheads.close()


def produce_api(handler):
    return Api(ProduceRequest, handler, advertised=(0, 11), rights=(), served_from=3, pipelined=True, limits=RECORDS)


def produce_once(go_on):
    """A handler that answers when this event is set."""

    async def produce(_services, _request, _client):
        await go_on.wait()
        return ProduceResponse(responses=[], throttle_time_ms=0)

    return produce


async def test_a_small_frame_that_comes_while_another_is_unanswered_is_counted():
    go_on, begun = asyncio.Event(), []

    async def produce(_services, request, _client):
        begun.append(request)
        await go_on.wait()
        return ProduceResponse(responses=[], throttle_time_ms=0)

    frame = produce_of("flights", [bytes(500)])
    async with served(produce_api(produce), frame * 4, 3 * len(frame)) as services:
        await until(lambda: len(begun) == 3)
        await asyncio.sleep(0.05)
        assert len(begun) == 3
        assert services.frames.bytes_held == 2 * (len(frame) - 4)
        go_on.set()
        await until(lambda: len(begun) == 4)
    assert services.frames.bytes_held == 0


@pytest.mark.parametrize("keys", [["group"], ["group" * 500], [""] * 2_000, [""] * 16_000])
async def test_a_request_with_many_elements_is_decoded_in_a_thread_and_counted_however_small_it_is(keys):
    answered, held = asyncio.Event(), []

    async def find(services, request, _client):
        assert request.coordinator_keys == keys
        held.append(services.records.bytes_held)
        answered.set()
        return FindCoordinatorResponse(throttle_time_ms=0, coordinators=[])

    api = Api(FindCoordinatorRequest, find, advertised=(0, 6), rights=())
    async with served(api, frame_of(FindCoordinatorRequest(key_type=0, coordinator_keys=keys), 4)) as services:
        await asyncio.wait_for(answered.wait(), LIMIT_S)
        is_large = len(keys) > ON_LOOP_ELEMENTS
        assert set(services.bulkheads.lanes) == ({Lane.CODEC} if is_large else set())
        assert held == [len(keys) * ELEMENT_BYTES if is_large else 0]
    assert services.records.bytes_held == 0


async def test_work_on_the_elements_of_a_request_leaves_the_loop_if_they_are_many_not_if_they_are_long():
    large = []

    async def produce(_services, _request, _client):
        large.append(request_context.get().memory.is_large)
        return ProduceResponse(responses=[], throttle_time_ms=0)

    frames = produce_of("flights", [bytes(100_000)]) + produce_of("flights", [b""] * (ON_LOOP_ELEMENTS + 1))
    async with served(produce_api(produce), frames):
        await until(lambda: len(large) == 2)
    assert large == [False, True]


async def test_a_produce_frame_that_is_cut_off_is_charged_for_what_has_come():
    frame = produce_of("flights", [bytes(100_000)])
    async with served(produce_api(None), frame[:-1]) as services:
        services.quotas._quotas = {entity_of([("client-id", None)]): {PRODUCER_BYTE_RATE: 1_000.0}}
        services.quotas._buckets.clear()
        services.reader.feed_eof()
        await asyncio.wait_for(services.serving, LIMIT_S)
        [bucket] = services.quotas._until_s
        assert services.quotas.wait_s(bucket) > 80


async def test_a_large_frame_behind_a_slow_request_of_its_connection_gives_way_to_others(monkeypatch):
    monkeypatch.setattr(memory_budget, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(memory_budget, "_STALLED_S", 0.05)
    begun = asyncio.Event()

    async def find(_services, _request, _client):
        begun.set()
        await asyncio.Event().wait()

    api = Api(FindCoordinatorRequest, find, advertised=(0, 6), rights=())
    frames = [frame_of(FindCoordinatorRequest(key_type=0, coordinator_keys=["x" * size]), 4) for size in (10, 50_000)]
    async with served(api, b"".join(frames), 60_000) as services:
        await begun.wait()
        other = services.frames.hold(lambda: None, "other")
        while not services.frames.bytes_held:
            await asyncio.sleep(0)
        await asyncio.wait_for(other.more(50_000), LIMIT_S)
        await asyncio.wait_for(services.serving, LIMIT_S)


async def test_a_request_that_is_still_worked_for_keeps_its_memory_after_its_connection_has_failed():
    first, go_on, begun = asyncio.Event(), asyncio.Event(), []

    async def produce(_services, request, _client):
        begun.append(request)
        await (first if len(begun) == 1 else go_on).wait()
        return ProduceResponse(responses=[], throttle_time_ms=0)

    frame = produce_of("flights", [bytes(50_000)])
    async with served(produce_api(produce), frame * 3) as services:
        services.writer.write = services.writer.fail
        while len(begun) < 3:
            await asyncio.sleep(0)
        first.set()
        await asyncio.wait([services.serving], timeout=60)
        assert services.serving.done() and len(begun) == 3
        assert services.frames.bytes_held == 2 * (len(frame) - 4)
        go_on.set()
        await until(lambda: services.frames.bytes_held == 0)


async def test_what_the_client_takes_of_an_answer_counts():
    async with served(produce_api(None), b"") as services:
        memory = RequestMemory(services.frames, services.records, MemoryBudget(10**9), 10**9, lambda: None, "me")
        memory.response.set(1_000_000)
        memory.response.waits_for_client(True)
        before_s, written = memory.response.stalled_since_s, []
        services.writer.write = lambda step: written.append(len(step))
        await services.connection._send(bytes(1_000_000), memory)
        assert sum(written) == 1_000_000 and max(written) <= 256 * 1024
        assert memory.response.stalled_since_s > before_s + 0.2


async def test_a_long_client_id_is_refused_before_it_is_read():
    reader = ClientReader(asyncio.get_running_loop())
    reader.feed_data(struct.pack(">ihhih", 100_000, 0, 3, 1, 5_000))
    with pytest.raises(MalformedRequestError, match="a client id of 5000 bytes"):
        await asyncio.wait_for(read_start(reader, lambda _: 10**6, lambda: 0), LIMIT_S)


async def test_a_connection_ends_that_was_reset_while_its_answers_had_no_room():
    go_on = asyncio.Event()
    async with served(produce_api(produce_once(go_on)), produce_of("flights", [b""]) * 10, pipelined_max=2) as services:
        services.writer.drain = services.writer.reset
        # this task, reading, writing, and three requests, of which one has no room
        await until(lambda: services.serving.done() or len(asyncio.all_tasks()) >= 6)
        assert not services.serving.done()
        go_on.set()
        done, _ = await asyncio.wait([services.serving], timeout=60)
        assert done


@pytest.mark.parametrize("refused", [False, True])
async def test_a_frame_that_is_answered_or_refused_is_freed_while_the_connection_goes_on(refused, caplog):
    caplog.set_level(logging.ERROR, logger="spark_log")  # pytest keeps the errors of what is logged
    size, go_on = 4_000_000, asyncio.Event()
    if not refused:
        go_on.set()
    small, large = produce_of("flights", [b""]), produce_of("flights", [bytes(size)])
    if refused:
        large = large[:6] + struct.pack(">h", 99) + large[8:]
    tracemalloc.start()
    try:
        async with served(produce_api(produce_once(go_on)), small, 2 * size) as services:
            services.reader.feed_data(large)
            await until(lambda: services.frames.has_given and not services.frames.bytes_held)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not services.serving.done()
            assert tracemalloc.get_traced_memory()[0] < size // 2
            go_on.set()
    finally:
        tracemalloc.stop()


async def test_a_connection_is_idle_while_its_client_takes_nothing_of_an_answer():
    go_on, frame = asyncio.Event(), produce_of("flights", [b""])
    async with served(produce_api(produce_once(go_on)), frame, writer=StalledWriter) as services:
        connection, writer = services.connection, services.writer
        await until(lambda: connection.idle_since_s() is None)
        go_on.set()
        await writer.is_stalled.wait()
        since_s = connection.idle_since_s()
        assert since_s is not None and connection.idle_since_s() == since_s
        writer.unsent_bytes -= 1
        assert connection.idle_since_s() > since_s
        writer.takes.set()
