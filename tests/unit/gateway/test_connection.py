"""A connection ends when its client has gone, whatever it was doing."""

import asyncio
import struct
from types import SimpleNamespace

from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from spark_log.gateway.access.entry import Admitted
from spark_log.gateway.api import Api
from spark_log.gateway.client_reader import ClientReader
from spark_log.gateway.connection import Connection
from spark_log.gateway.counters import Counters
from spark_log.gateway.gateway_settings import GatewaySettings
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


def test_a_connection_ends_that_was_reset_while_its_answers_had_no_room():
    async def run():
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
        done, _ = await asyncio.wait([serving], timeout=10)
        assert done

    asyncio.run(run())
