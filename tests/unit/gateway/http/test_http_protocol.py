"""Clients that send slowly, receive slowly, or open many connections: these lose their connections, and others none."""

import itertools
import socket
import time

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse

from spark_log.gateway.http import protocol as http_protocol
from spark_log.gateway.http.asgi_server import serving
from tests.support.waiting import LIMIT_S, wait_until

BEGUN = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
WHOLE = BEGUN + b"\r\nbody"
OF_LARGE = WHOLE.replace(b"/echo", b"/large")
PATIENT_S = 600
"""A limit that no wait of a test reaches."""
LARGE, LARGE_PART = 32 << 20, 1 << 20
"""Bytes of an answer, more than the buffers of both sockets have, and of each part of it."""


async def application(scope, receive, send):
    try:
        body = await Request(scope, receive).body()
    except ClientDisconnect:
        return
    parts = [b"x" * LARGE_PART] * (LARGE // LARGE_PART) if scope["path"] == "/large" else [body]
    await StreamingResponse(each_of(parts), headers={"Content-Length": str(sum(map(len, parts)))})(scope, receive, send)


async def each_of(parts):
    for part in parts:
        yield part


@pytest.fixture
def connect(monkeypatch):
    """A function that connects to a server on which connections wait 0.4 s for their client, at most 4 at a time. The
    sockets have no other time limit than a test that hangs: what ends a connection is the server.
    """
    monkeypatch.setattr(http_protocol, "WAIT_S", 0.4)
    monkeypatch.setattr(http_protocol, "WAITING_MAX", 4)
    clients = []

    def open_connection(request=b"", address="127.0.0.1"):
        client = socket.create_connection(("127.0.0.1", server.port), LIMIT_S, (address, 0))
        clients.append(client)
        client.sendall(request)
        return client

    with serving(application, "127.0.0.1", 0, "limited") as server:
        yield open_connection
        for client in clients:
            client.close()


@pytest.fixture
def protocols(monkeypatch):
    """The connections of the server, in the order in which it accepted them."""
    made, connection_made = [], http_protocol.LimitedProtocol.connection_made

    def noting(self, transport):
        connection_made(self, transport)
        made.append(self)

    monkeypatch.setattr(http_protocol.LimitedProtocol, "connection_made", noting)
    return made


def is_answered(client):
    found = b""
    try:
        while not found.endswith(b"body"):
            part = client.recv(1000)
            if not part:
                return False
            found += part
    except ConnectionError:
        return False
    return found.startswith(b"HTTP/1.1 200")


def send_slowly(client, data):
    """A byte each 50 ms, the last one again and again. Whether the connection was ended meanwhile."""
    client.settimeout(0.05)
    end_s = time.monotonic() + LIMIT_S
    for at in itertools.count():
        if time.monotonic() > end_s:
            return False
        try:
            client.sendall(data[at : at + 1] or data[-1:])
            if not client.recv(1):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True


@pytest.mark.parametrize("begun", [b"", BEGUN, BEGUN + b"\r\n"], ids=["nothing", "headers", "body"])
def test_a_request_has_to_arrive_in_time_however_its_bytes_are_spread(connect, begun, monkeypatch):
    slow = connect(begun)
    assert send_slowly(slow, b"X-Slow: x" if begun != BEGUN + b"\r\n" else b"")
    monkeypatch.setattr(http_protocol, "WAIT_S", PATIENT_S)
    assert is_answered(connect(WHOLE))


@pytest.fixture
def patient(connect, monkeypatch):
    """`connect` to a server that ends no connection because of its time, however slow this machine is."""
    monkeypatch.setattr(http_protocol, "WAIT_S", PATIENT_S)
    return connect


def test_time_begins_anew_after_each_answer(patient, protocols):
    client = patient()
    [protocol] = wait_until(lambda: protocols)
    for _ in range(4):
        ends_s = protocol._deadline.when()
        client.sendall(WHOLE)
        assert is_answered(client)
        wait_until(lambda ends_s=ends_s: (ends := protocol._deadline) is not None and ends.when() > ends_s)


def test_of_too_many_connections_that_wait_the_oldest_ends(patient):
    waiting = [patient(BEGUN) for _ in range(4)]
    later = [patient(), patient()]
    for client in waiting[:2]:
        assert not is_answered(client)
    for client in waiting[2:]:
        client.sendall(b"\r\nbody")
        assert is_answered(client)
    later[0].sendall(WHOLE)
    assert is_answered(later[0])


def test_a_network_with_many_waiting_connections_ends_none_of_another(patient):
    begun = patient(BEGUN, "127.0.0.2")
    many = [patient(BEGUN) for _ in range(9)]
    begun.sendall(b"\r\nbody")
    assert is_answered(begun)
    assert not any(map(is_answered, many[:6]))


def test_of_too_many_connections_of_one_network_the_one_that_waits_longest_ends(patient, protocols, monkeypatch):
    monkeypatch.setattr(http_protocol, "OF_NETWORK_MAX", 3)
    busy, waiting = patient(), [patient(BEGUN), patient(BEGUN)]
    wait_until(lambda: len(protocols) == 3)
    busy.sendall(OF_LARGE)
    busy.recv(1, socket.MSG_PEEK)  # its answer has begun, so it has waited for less time than the others
    assert is_answered(patient(WHOLE))
    assert not is_answered(waiting[0])
    waiting[1].sendall(b"\r\nbody")
    assert is_answered(waiting[1])
    assert received(busy) > LARGE


def received(client):
    """The bytes that arrive until the connection ends, or the whole of a large answer has arrived."""
    found = 0
    try:
        while found <= LARGE and (part := client.recv(1 << 20)):
            found += len(part)
    except ConnectionError:
        pass
    return found


def test_an_answer_has_to_be_received_in_time(connect, protocols, monkeypatch):
    client = connect(OF_LARGE)
    wait_until(lambda: protocols and protocols[0].transport.is_closing())
    assert received(client) < LARGE
    monkeypatch.setattr(http_protocol, "WAIT_S", PATIENT_S)
    client = connect(OF_LARGE)
    time.sleep(0.1)
    assert received(client) > LARGE


def test_connections_whose_answers_are_not_received_count_as_waiting(patient, protocols):
    clients = [patient(OF_LARGE) for _ in range(4)]
    wait_until(lambda: len(protocols) == 4 and all(each.flow.write_paused for each in protocols))
    time.sleep(0.1)  # the buffers of the sockets may still grow, and which is full last is open
    assert is_answered(patient(WHOLE))
    assert sum(received(client) < LARGE for client in clients) == 1
