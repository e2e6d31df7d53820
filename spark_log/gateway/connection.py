"""Serves the connection of a client: reads frames, and writes responses in the order of the requests.

As in a broker, a request is handled after the one before it has been answered. Consecutive produce requests go to the
appender without waiting for each other, so that they share a transaction.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from spark_log import clock
from spark_log.cluster.quotas.rules import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, Bucket
from spark_log.errors import RetriableError, redact
from spark_log.gateway.access.access import EVERYTHING, Access
from spark_log.gateway.access.authorization import authorized
from spark_log.gateway.access.entry import Admitted
from spark_log.gateway.access.login import KEYS, Login
from spark_log.gateway.api import Api, Client, read_header
from spark_log.gateway.client_reader import FrameStart, abort, read_rest, read_start
from spark_log.gateway.limits.bulkheads import CpuTime, Lane, RequestContext, request_context
from spark_log.gateway.limits.memory_budget import UNCOUNTED_BYTES
from spark_log.gateway.limits.request_memory import RequestMemory, ResponseTooLargeError
from spark_log.gateway.protocol.request_limits import ELEMENT_BYTES, ON_LOOP_ELEMENTS
from spark_log.gateway.protocol.wire import (
    Elements,
    MalformedRequestError,
    Message,
    RequestHeader,
    decode_body,
    encode_response,
    has_long_array,
    is_quick,
    read_body,
)
from spark_log.gateway.services import Services
from spark_log.gateway.topics.metadata_requests import UNSUPPORTED_VERSION, software_of, versions_response
from spark_log.gateway.transactions.fencing_tokens import FencingTokens

logger = logging.getLogger(__name__)

_PRODUCE, _FETCH, _API_VERSIONS, _SHARE_FETCH = 0, 1, 18, 78
_FETCHES = (_FETCH, _SHARE_FETCH)
_BYTES_RATES = {_PRODUCE: PRODUCER_BYTE_RATE, **dict.fromkeys(_FETCHES, CONSUMER_BYTE_RATE)}
_LARGE_BYTES = 256 * 1024
"""A response with more bytes of records, or with a long array, is encoded in a thread."""
_STEP_BYTES = 64 * 1024
"""The bytes of an answer that are written at a time. The next ones wait until the client has read most of them."""
_LAST_ANSWER_S = _LONG_S = 1.0
_INT32_MAX = 2**31 - 1


class Connection:
    """Serves one client until it or the gateway closes the connection."""

    def __init__(self, services: Services, apis: Mapping[int, Api], admitted: Admitted) -> None:
        self._services, self._apis = services, apis
        self.reader, self._writer = admitted.reader, admitted.writer
        self._login, self._principal = admitted.login, admitted.principal
        self._host = (self._writer.get_extra_info("peername") or ("", 0))[0]
        self._answers: asyncio.Queue[_Answer | None] = asyncio.Queue(services.settings.pipelined_max)
        self._memory: set[RequestMemory] = set()
        """The memory of the requests that are not answered yet."""
        self._serving: asyncio.Task[None] | None = None
        self._last: _Answer | None = None
        """The last answer that was begun, until it is written."""
        self._last_is_pipelined = False
        self._software = admitted.software
        self._fencing_tokens = FencingTokens()
        self._order = asyncio.Lock()
        self._client = Client("", self._host, self._software, self._fencing_tokens, self._principal, order=self._order)
        self._client_key = self._client.key
        self._cpu_share: tuple[Bucket, float] | None = None
        """The bucket that is charged for the CPU time of the last request that was read, and the charge so far."""
        self._active_s = clock.monotonic_s()
        """The time of the last request, or at which the client last took bytes of an answer."""
        self._unsent_bytes: int | None = None
        """The bytes that asyncio's buffer had when last checked, or None while no answer is being sent."""

    @property
    def connection_id(self) -> str:
        return self._fencing_tokens.connection_id

    def idle_since_s(self) -> float | None:
        """Return the time of the last request, or None while a request is being answered. While its answer is being
        sent, return when the client last took some bytes, as seen by the calls of this function.
        """
        if self._unsent_bytes is None:
            return self._active_s if self._last is None else None
        unsent_bytes = self._writer.transport.get_write_buffer_size()
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._active_s = unsent_bytes, clock.monotonic_s()
        return self._active_s

    @property
    def waits_for_answer(self) -> bool:
        """Whether an answer has taken `_LONG_S` already, and the next requests of the connection wait for it."""
        waits = self._last is not None and not self._last_is_pipelined
        return waits and clock.monotonic_s() - self._active_s >= _LONG_S

    def close(self) -> None:
        """Close the connection at once. Unsent bytes are lost."""
        abort(self._writer.transport)

    async def serve(self) -> None:
        """Serve requests until the client or the gateway ends the connection. The first cancellation ends the reading;
        requests that have begun are answered. A second one ends these too. If the client disconnects, the last answer
        is cancelled, unless it answers a produce request.
        """
        self._serving = asyncio.current_task()
        writing = asyncio.create_task(self._write())
        try:
            if not await self._handle_all() and self._last is not None:
                # the request before the malformed one is answered, unless that takes longer
                await asyncio.wait([self._last.written], timeout=_LAST_ANSWER_S)
            self._end_waiting()
        except ConnectionError:
            self._end_waiting()
        except asyncio.CancelledError:
            pass
        finally:
            try:
                if not writing.done():
                    await self._answers.put(None)
            except asyncio.CancelledError:
                writing.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await writing
            self._writer.close()
            while not self._answers.empty():
                if (answer := self._answers.get_nowait()) is not None:
                    self._memory.discard(answer.memory)
                    answer.end()
            for memory in self._memory:  # the memory of a request that was not read
                memory.close()

    async def _handle_all(self) -> bool:
        """Handle requests until the client ends the connection. Return False if a malformed request ends it."""
        try:
            while await self._handle_next():
                pass
        except MalformedRequestError as error:  # caught here, because its traceback refers to the frame
            logger.warning("connection of %s closed: %s", self._host, error)
            return False
        return True

    async def _handle_next(self) -> bool:
        """Handle the next request, and keep no reference to its frame. Return False at the end of the connection."""
        request = await self._read_frame()
        if request is None:
            return False
        await self._handle(*request)
        return True

    def _end_waiting(self) -> None:
        """Cancel the last answer, for which the client no longer waits, unless it answers a produce request."""
        if self._last is not None and not self._last_is_pipelined:
            self._last.task.cancel()

    async def _read_frame(self) -> tuple[memoryview, RequestMemory] | None:
        """Read the next frame without its length, and return it with its memory, or None at the connection's end."""
        services = self._services
        memory = RequestMemory(
            services.frames, services.records, services.responses, services.settings.response_bytes_max, self.close,
            self._client_key,
        )  # fmt: skip
        self._memory.add(memory)
        try:
            start = await read_start(self.reader, self._frame_bytes_max, self._uncounted_bytes)
            await self._admit(start)
            frame = bytearray(start.data)
            try:
                await read_rest(self.reader, frame, start.size, memory.frame)
            except BaseException:
                if start.api_key == _PRODUCE:
                    bucket = services.quotas.bucket(PRODUCER_BYTE_RATE, self._client.user, start.client_id)
                    services.quotas.charge(bucket, len(frame) - start.size)
                raise
        except asyncio.IncompleteReadError:
            return None
        self._active_s = clock.monotonic_s()
        return memoryview(frame), memory

    def _frame_bytes_max(self, api_key: int) -> int:
        settings, api = self._services.settings, self._apis.get(api_key)
        own = None if api is None else api.limits.bytes_max
        return min(settings.frame_bytes_max, settings.small_frame_bytes_max if own is None else own)

    def _uncounted_bytes(self) -> int:
        """Return the size up to which the next frame is not counted. A connection has one uncounted frame at most."""
        return UNCOUNTED_BYTES if len(self._memory) == 1 else 0

    async def _admit(self, start: FrameStart) -> None:
        """Wait until the client's quotas admit a request, and charge the part that is known already (KIP-219)."""
        quotas, user, began_s = self._services.quotas, self._client.user, clock.monotonic_s()
        cpu = quotas.bucket(REQUEST_PERCENTAGE, user, start.client_id)
        self._cpu_share = None if cpu is None else (cpu, quotas.expected_cpu_s(cpu))
        if self._cpu_share is not None:
            await quotas.admit(REQUEST_PERCENTAGE, user, start.client_id, self._cpu_share[1], self.reader.gone.done)
        if start.api_key == _PRODUCE:
            await quotas.admit(PRODUCER_BYTE_RATE, user, start.client_id, start.size, self.reader.gone.done)
        elif start.api_key in _FETCHES:
            await quotas.admit(CONSUMER_BYTE_RATE, user, start.client_id, 0, self.reader.gone.done)
        self._services.counters.throttled_seconds += clock.monotonic_s() - began_s

    async def _handle(self, frame: memoryview, memory: RequestMemory) -> None:
        """Start to answer a request. Wait first if too many answers are not written yet."""
        try:
            begun = await self._begun(frame, memory)
        except MalformedRequestError:
            memory.close()
            raise
        await self._answers.put(begun)

    async def _begun(self, frame: memoryview, memory: RequestMemory) -> "_Answer":
        header = read_header(frame, self._apis)
        if self._login is not None and header.api_key in KEYS:
            return await self._logged_in_again(self._login, header, frame, memory)
        if self._login is not None and self._login.expired:
            raise MalformedRequestError("the SASL session has ended")
        api = self._apis.get(header.api_key)
        authorizer = self._services.authorizer
        access = EVERYTHING if authorizer is None else await authorizer.access(self._principal, self._host)
        client = self._client_of(header, access)
        if api is None or not api.serves(header.version):
            if header.api_key != _API_VERSIONS:
                raise MalformedRequestError(f"API {header.api_key} v{header.version} is not served")
            response = versions_response(self._services.versions, UNSUPPORTED_VERSION)
            return _Answer(asyncio.create_task(_done(encode_response(response, 0, header.correlation_id))), memory)
        if api.key == _PRODUCE:
            self._services.counters.produced_bytes += len(frame)
        if not (api.pipelined and self._last_is_pipelined):
            await self._until_written(memory)
        body, limits = frame[header.body :], api.limits
        if is_quick(api.request, header.version, body, limits.elements_max):
            request = decode_body(api.request, header.version, body)
        else:
            read, held = partial(read_body, api.request, header.version, body, limits.elements_max), ON_LOOP_ELEMENTS
            while isinstance(request := await self._in_thread(partial(read, held), client, memory), Elements):
                memory.is_large = True
                held = request.number
                await memory.records.more(held * ELEMENT_BYTES)
        if api.key == _API_VERSIONS:
            self._software = software_of(request, header.version)
        task = asyncio.create_task(self._answer(api, request, header, client, self._cpu_share, memory))
        self._last, self._last_is_pipelined = _Answer(task, memory), api.pipelined
        return self._last

    async def _in_thread(self, function: Callable[[], Any], client: Client, memory: RequestMemory) -> Any:
        return await self._services.bulkheads.run(Lane.CODEC, client.key, function, memory=memory)

    async def _until_written(self, memory: RequestMemory) -> None:
        """Wait until the last answer is written. Raises ConnectionResetError if the client disconnects meanwhile.

        The client has sent the request of this `memory` too early, so its frame counts as stalled.
        """
        if self._last is not None:
            written = self._last.written
            memory.frame.waits_for_client(True)
            await asyncio.wait([written, self.reader.gone], return_when=asyncio.FIRST_COMPLETED)
            memory.frame.waits_for_client(False)
            if not written.done():
                raise ConnectionResetError

    def _client_of(self, header: RequestHeader, access: Access) -> Client:
        """Return the client of a request: the same object as for the request before, unless something has changed."""
        last = self._client
        if (header.client_id, self._software) != (last.client_id, last.software) or access is not last.access:
            self._client = Client(
                header.client_id, self._host, self._software, self._fencing_tokens, self._principal, access, self._order
            )
        return self._client

    async def _logged_in_again(
        self, login: Login, header: RequestHeader, frame: memoryview, memory: RequestMemory
    ) -> "_Answer":
        """Answer a SASL request of a client that authenticates again (KIP-368)."""
        await self._until_written(memory)
        answer = _Answer(asyncio.create_task(_done(await login.answer(header, frame))), memory)
        if login.failed or login.takes_token:
            await self._answers.put(answer)
            raise MalformedRequestError("authentication failed")
        return answer

    async def _answer(
        self, api: Api, request: Message, header: RequestHeader, client: Client,
        share: tuple[Bucket, float] | None, memory: RequestMemory,
    ) -> bytes | None:  # fmt: skip
        """Handle a request. `share` is the bucket that is charged for the CPU time, and the charge so far."""
        quotas, counters, began_s = self._services.quotas, self._services.counters, clock.monotonic_s()
        cpu = None if share is None else CpuTime()
        name = None if api.owner_field is None else getattr(request, api.owner_field) or None
        request_context.set(RequestContext(api.lane, client.key, name, memory, cpu))
        if api.key in _FETCHES:
            bytes_max = min(request.max_bytes, self._services.settings.fetch_bytes_max)
            request.max_bytes = quotas.fetch_bytes_max(client.user, client.client_id, bytes_max)
        serve = api.handler if client.access is EVERYTHING else partial(authorized, api)
        try:
            response = await serve(self._services, request, client)
            answer = None if response is None else await self._encoded(response, header)
        finally:
            if cpu is not None and share is not None:
                quotas.charge_cpu(share[0], cpu.seconds, share[1])
        done = counters.requests[api.name]
        done.count += 1
        done.seconds += clock.monotonic_s() - began_s
        bytes_rate = _BYTES_RATES.get(api.key)
        used = None if bytes_rate is None else quotas.bucket(bytes_rate, client.user, client.client_id)
        if api.key in _FETCHES and answer is not None:
            counters.fetched_bytes += len(answer)
            memory.response.waits_for_client(True)  # the answer waits for a quota, and others may need the memory
            await quotas.admit(CONSUMER_BYTE_RATE, client.user, client.client_id, len(answer), self.reader.gone.done)
        paying = [bucket for bucket in (used, None if share is None else share[0]) if bucket is not None]
        throttled_s = max(map(quotas.wait_s, paying), default=0.0)
        if throttled_s > 0 and response is not None and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = min(math.ceil(throttled_s * 1000), _INT32_MAX)
            answer = await self._encoded(response, header)
        if answer is not None and (memory.response.bytes or len(answer) > UNCOUNTED_BYTES):
            memory.response.set(len(answer))
            memory.response.waits_for_client(True)
        return answer

    async def _encoded(self, response: Message, header: RequestHeader) -> bytes:
        context = request_context.get()
        assert context.memory is not None
        encode = partial(encode_response, response, header.version, header.correlation_id)
        if (header.api_key in _FETCHES and context.memory.response.bytes > _LARGE_BYTES) or has_long_array(response):
            return await self._services.call(encode)
        return encode() if context.cpu is None else context.cpu.measure(encode)

    async def _send(self, data: bytes, memory: RequestMemory) -> None:
        """Write an answer in steps, so that the transport does not copy it whole, and progress can be measured."""
        view = memoryview(data)
        for start in range(0, len(data), _STEP_BYTES):
            step = view[start : start + _STEP_BYTES]
            self._unsent_bytes, self._active_s = 0, clock.monotonic_s()
            self._writer.write(step)
            await self._writer.drain()
            memory.response.has_moved(len(step))
        self._unsent_bytes = None

    async def _write(self) -> None:
        try:
            while (answer := await self._answers.get()) is not None:
                try:
                    data = await answer.task
                    if data is not None:
                        await self._send(data, answer.memory)
                        del data
                finally:
                    self._memory.discard(answer.memory)
                    answer.end()
                    answer.written.set_result(None)
                    if self._last is answer:
                        self._last = None
                    del answer  # its task refers to the bytes
        except Exception as error:
            if isinstance(error, (ResponseTooLargeError, RetriableError)):  # such as a store that is not available
                logger.warning("connection of %s closed: %s", self._host, redact(str(error)))
            elif not isinstance(error, ConnectionError):
                logger.exception("a request of %s failed; its connection is closed", self._host)
            # the reading task may wait for room in the queue of answers, from which nothing is taken any more
            assert self._serving is not None
            self._serving.cancel()


class _Answer:
    """An answer that was begun. `written` completes when the answer is written, or will not be written."""

    def __init__(self, task: "asyncio.Task[bytes | None]", memory: RequestMemory) -> None:
        self.task, self.memory = task, memory
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """Give the memory back as soon as the task of the answer is done."""
        if self.task.done():
            self.memory.close()
        else:
            self.task.add_done_callback(lambda _: self.memory.close())


async def _done(answer: bytes) -> bytes:
    return answer
