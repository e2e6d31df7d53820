"""A client's connection: frames in, responses out, in the order of the requests.

As in a broker, a request is handled after the one before it has been answered. Produce requests that follow one another
are handed to the appender at once, so that they share a transaction.
"""

import asyncio
import contextlib
import logging
import math
from functools import partial
from typing import TYPE_CHECKING

from spark_log import clock
from spark_log.gateway.access.authorization import EVERYTHING, Access, authorized
from spark_log.gateway.access.entry import Admitted
from spark_log.gateway.access.login import KEYS, Login
from spark_log.gateway.api import Api, Client
from spark_log.gateway.claims import Claims
from spark_log.gateway.cpu_time import CpuTime, cpu_of_request
from spark_log.gateway.metadata_requests import UNSUPPORTED_VERSION, software_of, versions_response
from spark_log.gateway.wire import (
    MalformedRequestError,
    Message,
    RequestHeader,
    encode_response,
    read_body,
    read_request_header,
)
from spark_log.quotas.rules import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, Bucket

if TYPE_CHECKING:
    from spark_log.gateway.gateway import Gateway

logger = logging.getLogger(__name__)

_PRODUCE, _FETCH, _API_VERSIONS = 0, 1, 18
_HEADER_START, _ID_START = 8, 10
"""Bytes of API key, version and correlation id; and of the length of the client id besides."""
_INT32_MAX = 2**31 - 1


class Connection:
    """Serves one client until it or the gateway closes the connection."""

    def __init__(self, gateway: "Gateway", admitted: Admitted) -> None:
        self._gateway, self._reader, self._writer = gateway, admitted.reader, admitted.writer
        self._login, self._principal = admitted.login, admitted.principal
        self._host = (self._writer.get_extra_info("peername") or ("", 0))[0]
        self._answers: asyncio.Queue[asyncio.Task[bytes | None] | None] = asyncio.Queue(gateway.settings.pipelined_max)
        self._serving: asyncio.Task[None] | None = None
        self._last: asyncio.Task[bytes | None] | None = None
        self._last_is_pipelined = False
        self._software = admitted.software
        self._claims = Claims()
        self._client = Client("", self._host, self._software, self._claims, self._principal)
        self._cpu_share: tuple[Bucket, float] | None = None
        """The bucket that pays for the CPU time of the last request that was read, and what it was charged already."""

    async def serve(self) -> None:
        """Until the client or the gateway ends it. The first cancellation ends the reading of requests; those that have
        begun are answered, unless there is a second one.
        """
        self._serving = asyncio.current_task()
        writing = asyncio.create_task(self._write())
        try:
            while (frame := await self._read_frame()) is not None:
                await self._handle(frame)
        except MalformedRequestError as error:
            logger.warning("connection of %s closed: %s", self._host, error)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            if self._answers.full():
                writing.cancel()
            else:
                self._answers.put_nowait(None)
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await writing
            self._writer.close()

    async def _read_frame(self) -> memoryview | None:
        """The next frame without its length; None at the end of the connection."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big", signed=True)
            if not _HEADER_START <= size <= self._gateway.settings.frame_bytes_max:
                raise MalformedRequestError(f"a frame of {size} bytes")
            start = await self._reader.readexactly(_HEADER_START)
            api_key = int.from_bytes(start[:2], "big", signed=True)
            if api_key != 0 and size > self._gateway.settings.small_frame_bytes_max:
                raise MalformedRequestError(f"a request of API {api_key} with {size} bytes")
            if size < _ID_START:
                raise MalformedRequestError("a request header is cut off")
            start += await self._reader.readexactly(_ID_START - _HEADER_START)
            id_size = max(0, int.from_bytes(start[_HEADER_START:], "big", signed=True))
            if _ID_START + id_size > size:
                raise MalformedRequestError("a request header is cut off")
            start += await self._reader.readexactly(id_size)
            client_id = start[_ID_START:].decode(errors="replace")
            await self._admit(api_key, client_id, size)
            try:
                return memoryview(start + await self._reader.readexactly(size - len(start)))
            except BaseException:
                if api_key == _PRODUCE:
                    quotas = self._gateway.quotas
                    quotas.charge(quotas.bucket(PRODUCER_BYTE_RATE, self._client.user, client_id), -size)
                raise
        except asyncio.IncompleteReadError:
            return None

    async def _admit(self, api_key: int, client_id: str, size: int) -> None:
        """Wait until the use of the client's quotas is paid for, and charge what is known of the request (KIP-219)."""
        quotas, began_s = self._gateway.quotas, clock.monotonic_s()
        cpu = quotas.bucket(REQUEST_PERCENTAGE, self._client.user, client_id)
        self._cpu_share = None if cpu is None else (cpu, quotas.expected_cpu_s(cpu))
        if self._cpu_share is not None:
            await quotas.admit(REQUEST_PERCENTAGE, self._client.user, client_id, self._cpu_share[1], self._is_gone)
        if api_key == _PRODUCE:
            await quotas.admit(PRODUCER_BYTE_RATE, self._client.user, client_id, size, self._is_gone)
        elif api_key == _FETCH:
            await quotas.admit(CONSUMER_BYTE_RATE, self._client.user, client_id, 0, self._is_gone)
        self._gateway.counters.throttled_seconds += clock.monotonic_s() - began_s

    def _is_gone(self) -> bool:
        """Whether the client has closed the connection: it sends again what waited for longer than its time-out."""
        return bool(self._reader._eof)  # type: ignore[attr-defined]  # at_eof() is False while a request is unread

    async def _handle(self, frame: memoryview) -> None:
        header = read_request_header(frame, self._gateway.is_flexible)
        if self._login is not None and await self._is_login(self._login, header, frame):
            return
        api = self._gateway.apis.get(header.api_key)
        authorizer = self._gateway.authorizer
        access = EVERYTHING if authorizer is None else await authorizer.access(self._principal, self._host)
        client = self._client_of(header, access)
        if api is None or not api.serves(header.version):
            if header.api_key != _API_VERSIONS:
                raise MalformedRequestError(f"API {header.api_key} v{header.version} is not served")
            answer = encode_response(
                versions_response(self._gateway.apis.values(), UNSUPPORTED_VERSION), 0, header.correlation_id
            )
            await self._answers.put(asyncio.create_task(_done(answer)))
            return
        if api.key == _PRODUCE:
            self._gateway.counters.produced_bytes += len(frame)
        request = read_body(api.request, header.version, frame[header.body :])
        if api.key == _API_VERSIONS:
            self._software = software_of(request, header.version)
        if self._last is not None and not (api.pipelined and self._last_is_pipelined):
            await asyncio.wait([self._last])
        self._last = asyncio.create_task(self._answer(api, request, header, client, self._cpu_share))
        self._last_is_pipelined = api.pipelined
        await self._answers.put(self._last)

    def _client_of(self, header: RequestHeader, access: Access) -> Client:
        """The same value as for the request before, unless something has changed."""
        last = self._client
        if (header.client_id, self._software) != (last.client_id, last.software) or access is not last.access:
            self._client = Client(header.client_id, self._host, self._software, self._claims, self._principal, access)
        return self._client

    async def _is_login(self, login: Login, header: RequestHeader, frame: memoryview) -> bool:
        """Whether the request was one of SASL: a client that authenticates again (KIP-368). It is answered."""
        if header.api_key not in KEYS:
            if login.expired:
                raise MalformedRequestError("the SASL session has ended")
            return False
        if self._last is not None:
            await asyncio.wait([self._last])
        await self._answers.put(asyncio.create_task(_done(await login.answer(header, frame))))
        if login.failed or login.takes_token:
            raise MalformedRequestError("authentication failed")
        return True

    async def _answer(
        self, api: Api, request: Message, header: RequestHeader, client: Client, share: tuple[Bucket, float] | None
    ) -> bytes | None:
        """`share`: the bucket that pays for the CPU time, and what it was charged already."""
        quotas, counters, began_s = self._gateway.quotas, self._gateway.counters, clock.monotonic_s()
        cpu = None if share is None else CpuTime()
        cpu_of_request.set(cpu)
        if api.key == _FETCH:
            request.max_bytes = quotas.fetch_bytes_max(client.user, client.client_id, request.max_bytes)
        serve = api.handler if client.access is EVERYTHING else partial(authorized, api)
        try:
            response = await serve(self._gateway, request, client)
            encode = partial(encode_response, response, header.version, header.correlation_id)
            answer = None if response is None else encode() if cpu is None else cpu.measure(encode)
        finally:
            if cpu is not None and share is not None:
                quotas.charge_cpu(share[0], cpu.seconds, share[1])
        done = counters.requests[api.name]
        done.count += 1
        done.seconds += clock.monotonic_s() - began_s
        bytes_rate = {_PRODUCE: PRODUCER_BYTE_RATE, _FETCH: CONSUMER_BYTE_RATE}.get(api.key)
        used = None if bytes_rate is None else quotas.bucket(bytes_rate, client.user, client.client_id)
        if api.key == _FETCH and answer is not None:
            counters.fetched_bytes += len(answer)
            await quotas.admit(CONSUMER_BYTE_RATE, client.user, client.client_id, len(answer), self._is_gone)
        throttled_s = max(quotas.wait_s(used), quotas.wait_s(None if share is None else share[0]))
        if throttled_s > 0 and response is not None and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = min(math.ceil(throttled_s * 1000), _INT32_MAX)
            answer = encode()
        return answer

    async def _write(self) -> None:
        try:
            while (task := await self._answers.get()) is not None:
                answer = await task
                if answer is not None:
                    self._writer.write(answer)
                    await self._writer.drain()
        except Exception as error:
            if not isinstance(error, ConnectionError):
                logger.exception("a request of %s failed; its connection is closed", self._host)
            # the reading may wait for room among the answers, which nobody takes any more
            assert self._serving is not None
            self._serving.cancel()


async def _done(answer: bytes) -> bytes:
    return answer
