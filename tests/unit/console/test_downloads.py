"""Downloads of slow browsers: each ends, and a user has one of a path."""

from threading import Event

import anyio
import pytest
from starlette.exceptions import HTTPException

from spark_log.console.downloads import DownloadResponse, RunningDownloads
from spark_log.console.routes import Download

SCOPE = {"type": "http", "asgi": {"spec_version": "2.3"}}


class Browser:
    """Receives the head and `parts` parts of an answer, then nothing more, and stays connected."""

    def __init__(self, parts=0):
        self.parts, self.bodies, self.waits = parts, [], anyio.Event()

    async def send(self, message):
        body = message.get("body", b"")
        if body and len(self.bodies) == self.parts:
            self.waits.set()
            await anyio.sleep_forever()
        if body:
            self.bodies.append(body)

    async def receive(self):
        await anyio.sleep_forever()


def endless(closed):
    try:
        while True:
            yield b"part"
    finally:
        closed.set()


def download(running, name):
    closed, left = Event(), Event()
    return DownloadResponse(Download("text/plain", endless(closed)), running, name, left), closed, left


async def test_a_browser_that_takes_no_part_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("spark_log.console.downloads.PART_S_MAX", 0.01)
    running, browser = RunningDownloads(), Browser()
    response, closed, left = download(running, "a")
    await response(SCOPE, browser.receive, browser.send)
    assert closed.is_set() and left.is_set() and running.count == 0


async def test_the_next_download_of_a_name_ends_the_one_before_and_there_are_only_so_many():
    running = RunningDownloads(2)
    browsers = {name: Browser() for name in ("ann 1", "bob", "ann 2")}
    begun = {name: download(running, name.split()[0]) for name in browsers}
    async with anyio.create_task_group() as group:

        async def start(name):
            browser = browsers[name]
            group.start_soon(begun[name][0], SCOPE, browser.receive, browser.send)
            await browser.waits.wait()

        await start("ann 1")
        await start("bob")
        response, _, _ = download(running, "carl")
        with pytest.raises(HTTPException, match="2 downloads"):
            await response(SCOPE, Browser().receive, Browser().send)
        await start("ann 2")
        while running.count > 2:
            await anyio.sleep(0)
        assert [begun[name][1].is_set() for name in browsers] == [True, False, False]
        group.cancel_scope.cancel()
    assert running.count == 0
