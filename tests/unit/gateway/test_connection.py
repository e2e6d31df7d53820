"""A connection ends when its client has gone, whatever it was doing, and keeps no frame that it has answered."""

import asyncio
import logging
import struct
import tracemalloc
from types import SimpleNamespace

import pytest
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from spark_log.gateway.access.entry import Admitted
from spark_log.gateway.api import Api
from spark_log.gateway.client_reader import ClientReader
from spark_log.gateway.connection import Connection
from spark_log.gateway.counters import Counters
from spark_log.gateway.gateway_settings import GatewaySettings
from spark_log.gateway.limits.bulkheads import Bulkheads
from spark_log.gateway.limits.memory_budget import MemoryBudget
from spark_log.gateway.limits.quota_budgets import QuotaBudgets
from spark_log.gateway.protocol.request_limits import RECORDS


class GoneClient:
    """The writing side of a connection that was reset."""

    def get_extra_info(self, _name):
        return "127.0.0.1", 1

    def write(self, _data):
        pass

    async def drain(self):
        raise ConnectionResetError

    def close(self):
        pass


async def test_a_connection_ends_that_was_reset_while_its_answers_had_no_room():
    go_on = asyncio.Event()

    async def answer(_services, _request, _client):
        await go_on.wait()
        return ProduceResponse(responses=[], throttle_time_ms=0)

    api = Api(ProduceRequest, answer, advertised=(0, 11), rights=(), served_from=3, pipelined=True, limits=RECORDS)
    settings = GatewaySettings("127.0.0.1", 1, "127.0.0.1", 1, pipelined_max=2)
    services = SimpleNamespace(
        settings=settings, counters=Counters(), authorizer=None, quotas=QuotaBudgets(None, None),
        frames=MemoryBudget(1_000), records=MemoryBudget(1), responses=MemoryBudget(1),
    )  # fmt: skip
    body = struct.pack(">hhihhhii", 0, 3, 1, -1, -1, 1, 1_000, 0)
    reader = ClientReader(asyncio.get_running_loop())
    reader.feed_data((struct.pack(">i", len(body)) + body) * 10)
    connection = Connection(services, {api.key: api}, Admitted(reader, GoneClient()))
    serving = asyncio.create_task(connection.serve())
    while (
        not serving.done() and len(asyncio.all_tasks()) < 6
    ):  # this, reading, writing, and three requests, of which one has no room
        await asyncio.sleep(0)
    assert not serving.done()
    go_on.set()
    done, _ = await asyncio.wait([serving], timeout=60)
    assert done


class Client(GoneClient):
    """The writing side of a connection whose client takes everything."""

    async def drain(self):
        pass


class Budget(MemoryBudget):
    has_given = False

    async def take(self, hold, size):
        await super().take(hold, size)
        self.has_given = True


@pytest.mark.parametrize("refused", [False, True])
async def test_a_frame_that_is_answered_or_refused_is_freed_while_the_connection_goes_on(refused, caplog):
    caplog.set_level(logging.ERROR, logger="spark_log")  # pytest keeps the errors of what is logged
    size = 4_000_000
    go_on = asyncio.Event()

    async def answer(_services, _request, _client):
        if refused:
            await go_on.wait()
        return ProduceResponse(responses=[], throttle_time_ms=0)

    api = Api(ProduceRequest, answer, advertised=(0, 11), rights=(), served_from=3, pipelined=True, limits=RECORDS)
    settings = GatewaySettings("127.0.0.1", 1, "127.0.0.1", 1)
    budgets = {name: Budget(2 * size) for name in ("frames", "records", "responses")}
    services = SimpleNamespace(
        settings=settings, counters=Counters(), authorizer=None, quotas=QuotaBudgets(None, None),
        bulkheads=Bulkheads(), **budgets,
    )  # fmt: skip
    reader = ClientReader(asyncio.get_running_loop())
    connection = Connection(services, {api.key: api}, Admitted(reader, Client()))
    tracemalloc.start()
    serving = asyncio.create_task(connection.serve())
    try:
        small = struct.pack(">hhihhhii", 0, 3, 1, -1, -1, 1, 1_000, 0)
        reader.feed_data(struct.pack(">i", len(small)) + small)
        large = small[:-4] + struct.pack(">ih", 1, 1) + b"t" + struct.pack(">iii", 1, 0, size) + bytes(size)
        if refused:
            large = large[:2] + struct.pack(">h", 99) + large[4:]
        reader.feed_data(struct.pack(">i", len(large)) + large)
        del large
        while not services.frames.has_given or services.frames.bytes_held:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not serving.done()
        assert tracemalloc.get_traced_memory()[0] < size // 2
    finally:
        tracemalloc.stop()
        go_on.set()
        reader.feed_eof()
        await serving
        services.bulkheads.close()


class StalledClient(GoneClient):
    """The writing side of a connection whose client takes bytes only when the test says so."""

    def __init__(self):
        self.transport, self.unsent_bytes = self, 0
        self.is_stalled, self.takes = asyncio.Event(), asyncio.Event()

    def get_write_buffer_size(self):
        return self.unsent_bytes

    def write(self, data):
        self.unsent_bytes += len(data)

    async def drain(self):
        self.is_stalled.set()
        await self.takes.wait()


async def test_a_connection_is_idle_while_its_client_takes_nothing_of_an_answer():
    go_on = asyncio.Event()

    async def answer(_services, _request, _client):
        await go_on.wait()
        return ProduceResponse(responses=[], throttle_time_ms=0)

    api = Api(ProduceRequest, answer, advertised=(0, 11), rights=(), served_from=3, limits=RECORDS)
    services = SimpleNamespace(
        settings=GatewaySettings("127.0.0.1", 1, "127.0.0.1", 1), counters=Counters(), authorizer=None,
        quotas=QuotaBudgets(None, None), frames=MemoryBudget(1_000), records=MemoryBudget(1), responses=MemoryBudget(1),
    )  # fmt: skip
    reader, client = ClientReader(asyncio.get_running_loop()), StalledClient()
    connection = Connection(services, {api.key: api}, Admitted(reader, client))
    serving = asyncio.create_task(connection.serve())
    body = struct.pack(">hhihhhii", 0, 3, 1, -1, -1, 1, 1_000, 0)
    reader.feed_data(struct.pack(">i", len(body)) + body)
    while connection.idle_since_s() is not None:
        await asyncio.sleep(0)
    go_on.set()
    await client.is_stalled.wait()
    since_s = connection.idle_since_s()
    assert since_s is not None and connection.idle_since_s() == since_s
    client.unsent_bytes -= 1
    assert connection.idle_since_s() > since_s
    client.takes.set()
    reader.feed_eof()
    await asyncio.wait_for(serving, 60)
