"""Connections of clients that have gone, or do not close: they end, and keep their places until then."""

import asyncio
import contextlib
import os
import socket
import ssl
import tracemalloc

import pytest
from kafka.protocol.consumer import JoinGroupRequest
from kafka.protocol.metadata import MetadataRequest

from spark_log import Cluster
from spark_log.gateway import client_reader
from spark_log.gateway.access.tls import TlsFiles, start_tls
from spark_log.gateway.gateway_settings import GatewaySettings
from spark_log.gateway.server import Gateway
from tests.support.gateway_wire import frame_of
from tests.support.security import Authority
from tests.support.server_processes import free_port

DAY_MS = 86_400_000
HOUR_S = 3_600


@pytest.fixture
def tls(tmp_path):
    return TlsFiles(*Authority(tmp_path).issue("gateway", CN="gateway"))


def client_context():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@contextlib.asynccontextmanager
async def gateway_on(folder, tls):
    """A gateway whose handshakes and ends of TLS may take an hour."""
    Cluster.init(str(folder / "cluster")).close()
    port = free_port()
    settings = GatewaySettings("127.0.0.1", port, "127.0.0.1", port, tls=tls, authentication_timeout_s=HOUR_S)
    with Cluster.open(str(folder / "cluster")) as cluster:
        gateway, started = Gateway(cluster, settings), asyncio.Event()
        running = asyncio.create_task(gateway.run(started.set))
        await started.wait()
        try:
            yield gateway, port
        finally:
            gateway.stop()
            await running
            await asyncio.to_thread(gateway.services.changes.join)


def connect(port, tls):
    client = socket.create_connection(("127.0.0.1", port), 30)
    return client if tls is None else client_context().wrap_socket(client)


def join():
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name="p", metadata=b"m")]
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=1_700_000, rebalance_timeout_ms=DAY_MS, member_id="", group_instance_id=None,
        protocol_type="connect", protocols=protocols,
    )  # fmt: skip
    return frame_of(request, 2)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_request_that_waits_ends_when_its_client_goes_who_has_sent_more_than_is_read(tmp_path, tls, encrypted):
    if not encrypted:
        tls = None
    small = frame_of(MetadataRequest(topics=[], allow_auto_topic_creation=False), 7)
    async with gateway_on(tmp_path, tls) as (gateway, port):
        client = await asyncio.to_thread(connect, port, tls)
        # the second one waits until the first one joins again, and nothing behind it is read
        await asyncio.to_thread(client.sendall, join() + join() + small * (1_000_000 // len(small)))
        while gateway.connections == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert gateway.connections == 1
        client.close()
        async with asyncio.timeout(60):
            while gateway.connections:
                await asyncio.sleep(0.01)


async def test_a_connection_has_its_place_until_its_client_closes_or_its_time_is_over(tmp_path, tls, monkeypatch):
    monkeypatch.setattr(client_reader, "_LAST_BYTES_S", 2)
    async with gateway_on(tmp_path, tls) as (gateway, port):
        client = await asyncio.to_thread(connect, port, tls)
        with socket.socket(fileno=os.dup(client.fileno())) as below:
            await asyncio.to_thread(client.sendall, bytes(100))  # not a request
            while gateway.connections == 0:
                await asyncio.sleep(0.01)
            while gateway.connections:
                await asyncio.sleep(0.01)
            below.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                while await asyncio.to_thread(below.recv, 1 << 16):
                    pass
        client.close()


async def test_a_connection_with_tls_has_small_buffers(tls):
    count = 20
    transports, context = [], tls.context()

    async def connected(reader, writer):
        _, over = await start_tls(writer, context, 30)
        transports.append(over.transport)

    server = await client_reader.start_server(connected, "127.0.0.1", 0, reuse_port=False)
    port = server.sockets[0].getsockname()[1]
    clients = [await asyncio.to_thread(connect, port, tls)]
    tracemalloc.start()
    try:
        clients += [await asyncio.to_thread(connect, port, tls) for _ in range(count)]
        while len(transports) <= count:
            await asyncio.sleep(0.01)
        each_bytes = tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()
    assert each_bytes < 100_000
    for transport in transports:
        assert max(transport.get_read_buffer_limits()) == max(transport.get_write_buffer_limits()) == 64 * 1024
        transport.abort()
    for client in clients:
        client.close()
    server.close()
