"""The places of connections that have not authenticated."""

import asyncio
from types import SimpleNamespace

from spark_log.gateway.access.entry import Admitted, Entry
from spark_log.gateway.gateway_settings import GatewaySettings


class Writer:
    def __init__(self, host):
        self.host, self.closed = host, False

    def get_extra_info(self, _name):
        return self.host, 1

    def close(self):
        self.closed = True


def test_the_addresses_of_one_network_leave_places_to_the_others(monkeypatch):
    async def run():
        settings = GatewaySettings("127.0.0.1", 1, "127.0.0.1", 1, unauthenticated_connections_max=8)
        services = SimpleNamespace(settings=settings, versions={}, cluster=SimpleNamespace(store=None), call=None)
        entry, go_on = Entry(services, None, {}), asyncio.Event()

        async def admitted(_self, reader, writer):
            await go_on.wait()
            return Admitted(reader, writer)

        monkeypatch.setattr(Entry, "_admitted", admitted)
        writers = [Writer(f"2001:db8:1:2::{number}") for number in range(8)]
        tasks = [asyncio.create_task(entry.admit(None, writer)) for writer in writers]
        other = Writer("2001:db8:1:3::1")
        tasks.append(asyncio.create_task(entry.admit(None, other)))
        await asyncio.sleep(0)
        assert [writer.closed for writer in writers] == [False] * 2 + [True] * 6
        assert not other.closed
        go_on.set()
        assert [one is not None for one in await asyncio.gather(*tasks)] == [True] * 2 + [False] * 6 + [True]

    asyncio.run(run())
