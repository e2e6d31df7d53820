"""What a connection reads and decodes is paid for: memory of frames, threads for many elements, quotas of bytes."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import pytest
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from spark_log.cluster.quotas.rules import PRODUCER_BYTE_RATE, entity_of
from spark_log.gateway.access.entry import Admitted
from spark_log.gateway.api import Api
from spark_log.gateway.client_reader import ClientReader
from spark_log.gateway.connection import Connection
from spark_log.gateway.counters import Counters
from spark_log.gateway.gateway_settings import GatewaySettings
from spark_log.gateway.limits import memory_budget
from spark_log.gateway.limits.bulkheads import Bulkheads, Lane
from spark_log.gateway.limits.memory_budget import MemoryBudget
from spark_log.gateway.limits.quota_budgets import QuotaBudgets
from spark_log.gateway.protocol.request_limits import ELEMENT_BYTES, ON_LOOP_ELEMENTS, RECORDS
from tests.support.costly_requests import frame_of, produce_of


class Writer:
    def __init__(self, reader):
        self.transport, self.abort = self, partial(reader.set_exception, ConnectionResetError())

    def get_extra_info(self, _name):
        return "127.0.0.1", 1

    def write(self, _data):
        pass

    async def drain(self):
        pass

    def close(self):
        pass


class CountedBulkheads(Bulkheads):
    def __init__(self):
        super().__init__()
        self.lanes = []

    async def run(self, lane, *arguments, **keywords):
        self.lanes.append(lane)
        return await super().run(lane, *arguments, **keywords)


@asynccontextmanager
async def served(api, data, frames_bytes=1_000_000):
    """A connection that has sent this."""
    services = SimpleNamespace(
        settings=GatewaySettings("127.0.0.1", 1, "127.0.0.1", 1), counters=Counters(), authorizer=None,
        quotas=QuotaBudgets(None, None), frames=MemoryBudget(frames_bytes), records=MemoryBudget(1),
        responses=MemoryBudget(1), bulkheads=CountedBulkheads(),
    )  # fmt: skip
    services.reader = ClientReader(asyncio.get_running_loop())
    services.reader.feed_data(data)
    services.serving = asyncio.create_task(
        Connection(services, {api.key: api}, Admitted(services.reader, Writer(services.reader))).serve()
    )
    try:
        yield services
    finally:
        services.reader.feed_eof()
        await asyncio.wait([services.serving], timeout=10)
        services.bulkheads.close()


def produce_api(handler):
    return Api(ProduceRequest, handler, advertised=(0, 11), rights=(), served_from=3, pipelined=True, limits=RECORDS)


def test_a_small_frame_that_comes_while_another_is_unanswered_is_counted():
    async def run():
        go_on, begun = asyncio.Event(), []

        async def produce(_services, request, _client):
            begun.append(request)
            await go_on.wait()
            return ProduceResponse(responses=[], throttle_time_ms=0)

        frame = produce_of("flights", [bytes(500)])
        async with served(produce_api(produce), frame * 4, 3 * len(frame)) as services:
            await asyncio.sleep(0.1)
            assert len(begun) == 3
            assert services.frames.bytes_held == 2 * (len(frame) - 4)
            go_on.set()
            await asyncio.sleep(0.1)
            assert len(begun) == 4
        assert services.frames.bytes_held == 0

    asyncio.run(run())


@pytest.mark.parametrize("keys", [["group"], ["group" * 500], [""] * 2_000, [""] * 16_000])
def test_a_request_with_many_elements_is_decoded_in_a_thread_and_counted_however_small_it_is(keys):
    async def run():
        answered, held = asyncio.Event(), []

        async def find(services, request, _client):
            assert request.coordinator_keys == keys
            held.append(services.records.bytes_held)
            answered.set()
            return FindCoordinatorResponse(throttle_time_ms=0, coordinators=[])

        api = Api(FindCoordinatorRequest, find, advertised=(0, 6), rights=())
        async with served(api, frame_of(FindCoordinatorRequest(key_type=0, coordinator_keys=keys), 4)) as services:
            await asyncio.wait_for(answered.wait(), 10)
            is_large = len(keys) > ON_LOOP_ELEMENTS
            assert set(services.bulkheads.lanes) == ({Lane.CODEC} if is_large else set())
            assert held == [len(keys) * ELEMENT_BYTES if is_large else 0]
        assert services.records.bytes_held == 0

    asyncio.run(run())


def test_a_produce_frame_that_is_cut_off_is_charged_for_what_has_come():
    async def run():
        frame = produce_of("flights", [bytes(100_000)])
        async with served(produce_api(None), frame[:-1]) as services:
            services.quotas._quotas = {entity_of([("client-id", None)]): {PRODUCER_BYTE_RATE: 1_000.0}}
            services.quotas._buckets.clear()
            services.reader.feed_eof()
            await asyncio.wait_for(services.serving, 10)
            [bucket] = services.quotas._until_s
            assert services.quotas.wait_s(bucket) > 80

    asyncio.run(run())


def test_a_large_frame_behind_a_slow_request_of_its_connection_gives_way_to_others(monkeypatch):
    monkeypatch.setattr(memory_budget, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(memory_budget, "_STALLED_S", 0.05)

    async def run():
        begun = asyncio.Event()

        async def find(_services, _request, _client):
            begun.set()
            await asyncio.Event().wait()

        api = Api(FindCoordinatorRequest, find, advertised=(0, 6), rights=())
        frames = [
            frame_of(FindCoordinatorRequest(key_type=0, coordinator_keys=["x" * size]), 4) for size in (10, 50_000)
        ]
        async with served(api, b"".join(frames), 60_000) as services:
            await begun.wait()
            other = services.frames.hold(lambda: None, "other")
            while not services.frames.bytes_held:
                await asyncio.sleep(0)
            await asyncio.wait_for(other.more(50_000), 10)
            await asyncio.wait_for(services.serving, 10)

    asyncio.run(run())
