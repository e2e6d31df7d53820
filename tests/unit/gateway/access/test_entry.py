"""The places of connections that have not authenticated."""

import asyncio
from types import SimpleNamespace

import pytest

from spark_log.gateway.access.entry import Admitted, Entry
from spark_log.gateway.gateway_settings import GatewaySettings


class Writer:
    def __init__(self, host):
        self.host, self.closed = host, False

    def get_extra_info(self, _name):
        return self.host, 1

    def close(self):
        self.closed = True


@pytest.fixture
def gateway(monkeypatch):
    """An Entry with 8 places, whose connections authenticate after `go_on` is set."""

    async def admitted(_self, reader, writer):
        await go_on.wait()
        return Admitted(reader, writer)

    go_on = asyncio.Event()
    monkeypatch.setattr(Entry, "_admitted", admitted)
    settings = GatewaySettings("127.0.0.1", 1, "127.0.0.1", 1, unauthenticated_connections_max=8)
    services = SimpleNamespace(settings=settings, versions={}, cluster=SimpleNamespace(store=None), call=None)
    return SimpleNamespace(entry=Entry(services, None, {}), go_on=go_on)


def admit(gateway, hosts):
    """Whether the connections of the hosts, which come in this order, are admitted, and their writers."""

    async def run():
        writers = [Writer(host) for host in hosts]
        tasks = [asyncio.create_task(gateway.entry.admit(None, writer)) for writer in writers]
        await asyncio.sleep(0)
        gateway.go_on.set()
        return [one is not None for one in await asyncio.gather(*tasks)], writers

    return asyncio.run(run())


def test_the_addresses_of_one_network_leave_places_to_the_others(gateway):
    hosts = [f"2001:db8:1:2::{number}" for number in range(8)]
    admitted, writers = admit(gateway, [*hosts, "2001:db8:1:3::1"])
    assert admitted == [True] * 2 + [False] * 6 + [True]
    assert [writer.closed for writer in writers] == [not one for one in admitted]


def test_networks_that_have_all_places_lose_their_oldest_to_another(gateway):
    full = [f"10.0.0.{number // 2}" for number in range(8)]
    admitted, _ = admit(gateway, [*full, "10.0.0.0", "10.0.1.1", "10.0.1.2"])
    assert admitted == [False, True, False, True, *[True] * 4, False, True, True]


def test_networks_with_equal_parts_keep_their_places(gateway):
    full = [f"10.0.0.{number}" for number in range(8)]
    admitted, _ = admit(gateway, [*full, "10.0.1.1"])
    assert admitted == [True] * 8 + [False]
    assert not gateway.entry._waiting


async def test_a_network_whose_expired_connections_are_still_closing_loses_a_place(gateway, monkeypatch):
    async def slow_to_close(_self, reader, writer):
        try:
            await gateway.go_on.wait()
        except asyncio.CancelledError:
            await gateway.go_on.wait()  # the client does not answer the end of the TLS connection
            raise
        return Admitted(reader, writer)

    monkeypatch.setattr(Entry, "_admitted", slow_to_close)
    hosts = [f"10.0.0.{number // 2}" for number in range(8)]
    waiting = [asyncio.create_task(gateway.entry.admit(None, Writer(host))) for host in hosts]
    await asyncio.sleep(0)
    for limits in gateway.entry._waiting.values():
        limits[0].reschedule(asyncio.get_running_loop().time())
    while not all(limits[0].expired() for limits in gateway.entry._waiting.values()):
        await asyncio.sleep(0)
    new = asyncio.create_task(gateway.entry.admit(None, Writer("10.0.1.1")))
    await asyncio.sleep(0)
    gateway.go_on.set()
    await asyncio.gather(*waiting)
    assert await new is not None
