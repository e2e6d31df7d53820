"""Large bodies are not read before they have a place, and the requests of one network leave places for the others."""

import asyncio
import json
from threading import Event

import pytest

from spark_log import clock
from spark_log.gateway.registry.places import LARGE_BODIES_MAX, REQUESTS_MAX, SMALL_BYTES, Places
from spark_log.gateway.registry.rest import application
from tests.support.waiting import LIMIT_S

LARGE_BYTES = SMALL_BYTES + 1


class Registry:
    """Calls wait for `go_on`. `begun` has the sizes of the schemas."""

    def __init__(self):
        self.begun, self.go_on = [], Event()

    def set_mode(self, mode, _subject):
        self.begun.append(len(mode))
        assert self.go_on.wait(60)


class Clients:
    """Each sends one request. `read` has the hosts whose bodies the server has read."""

    def __init__(self):
        self.registry = Registry()
        self.application = application(self.registry)
        self.read, self.statuses, self.tasks = [], [], []

    def put(self, host, size, *, chunked=False):
        body = json.dumps({"mode": "x" * (size - len('{"mode": ""}'))}).encode()
        length = (b"transfer-encoding", b"chunked") if chunked else (b"content-length", str(size).encode())
        scope = {
            "type": "http", "method": "PUT", "path": "/mode", "raw_path": b"/mode", "root_path": "", "scheme": "http",
            "query_string": b"", "client": (host, 1), "headers": [(b"host", b"localhost"), length],
        }  # fmt: skip

        async def receive():
            self.read.append(host)
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            self.statuses += [message["status"]] if "status" in message else []

        self.tasks.append(asyncio.create_task(self.application(scope, receive, send)))

    def counts(self):
        return len(self.read), len(self.registry.begun), len(self.statuses)

    async def quiet(self, read, begun, statuses=0):
        """Until these counts are reached, which may take long, and then until nothing more happens for 0.2 s."""
        async with asyncio.timeout(LIMIT_S):
            while any(count < least for count, least in zip(self.counts(), (read, begun, statuses), strict=True)):
                await asyncio.sleep(0.01)
        before = None
        while before != (before := self.counts()):
            await asyncio.sleep(0.2)

    async def finish(self):
        self.registry.go_on.set()
        await asyncio.gather(*self.tasks)


@pytest.mark.parametrize("chunked", [False, True])
async def test_one_large_body_of_a_network_is_read_and_one_of_all_is_parsed(chunked):
    clients = Clients()
    for _ in range(3):
        for number in range(LARGE_BODIES_MAX + 5):
            clients.put(f"10.0.0.{number}", LARGE_BYTES, chunked=chunked)
    clients.put("10.0.1.1", SMALL_BYTES)
    await clients.quiet(read=LARGE_BODIES_MAX + 1, begun=2)
    small, large = clients.registry.begun.count(SMALL_BYTES - 12), clients.registry.begun.count(LARGE_BYTES - 12)
    assert (small, large) == (1, 1)
    assert len(clients.read) == len(set(clients.read)) == LARGE_BODIES_MAX + 1
    await clients.finish()
    assert clients.statuses == [200] * (3 * (LARGE_BODIES_MAX + 5) + 1)


async def test_a_network_with_its_part_of_the_requests_is_refused_more():
    clients = Clients()
    for _ in range(REQUESTS_MAX + 5):
        clients.put("10.0.0.1", 100)
    await clients.quiet(read=REQUESTS_MAX, begun=2, statuses=5)  # two with a body of each network are answered
    assert clients.statuses == [503] * 5
    for _ in range(REQUESTS_MAX // 2 + 5):
        clients.put("10.0.0.2", 100)
    await clients.quiet(read=REQUESTS_MAX + REQUESTS_MAX // 2, begun=4, statuses=10)
    assert clients.statuses == [503] * 10
    clients.put("10.0.0.1", 100)
    clients.put("10.0.0.3", LARGE_BYTES)
    await clients.quiet(read=REQUESTS_MAX + REQUESTS_MAX // 2 + 1, begun=5, statuses=11)
    assert clients.statuses == [503] * 11
    await clients.finish()
    assert set(clients.statuses[11:]) == {200}


async def test_networks_that_have_used_much_cpu_time_are_answered_one_at_a_time(monkeypatch):
    async def begun(places, hosts):
        """Return the hosts whose requests begin to be answered while none ends."""
        answered, go_on = [], asyncio.Event()

        async def answer(host):
            async with places.answer(host, 100):
                answered.append(host)
                await go_on.wait()

        tasks = [asyncio.create_task(answer(host)) for host in hosts]
        for _ in range(10):
            await asyncio.sleep(0)
        first = list(answered)
        go_on.set()
        await asyncio.gather(*tasks)
        return first

    places, now_s, hosts = Places(), 1_000.0, ["costly1", "costly1", "costly2", "other", "other"]
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s)
    for _ in range(2):
        places.charge("costly1", 1.5)
    places.charge("costly2", 2.0)
    places.charge("other", 0.5)
    assert await begun(places, hosts) == ["costly1", "other", "other"]
    now_s += 45
    assert await begun(places, hosts) == ["costly1", "costly2", "other", "other"]
    now_s += 45
    assert await begun(places, hosts) == hosts


async def test_bodies_are_bounded_by_the_largest_schema_with_its_quotes():
    clients = Clients()
    clients.registry.go_on.set()
    clients.put("10.0.0.1", 2 * 1024 * 1024)
    clients.put("10.0.0.1", 2 * 1024 * 1024 + 1)
    clients.put("10.0.0.1", 2 * 1024 * 1024 + 1, chunked=True)
    await clients.finish()
    assert sorted(clients.statuses) == [200, 413, 413]
