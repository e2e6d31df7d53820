"""A gateway process: listens, serves connections, and holds its lease."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.errors import SparkLogError, redact
from spark_log.gateway import (
    cluster_requests,
    committed_offset_requests,
    config_requests,
    consumer_group_requests,
    fetch_requests,
    group_admin_requests,
    group_requests,
    metadata_requests,
    offset_requests,
    partition_requests,
    produce_requests,
    quota_requests,
    topic_requests,
    transaction_inspection_requests,
    transaction_requests,
)
from spark_log.gateway.access import acl_requests, login, user_requests
from spark_log.gateway.access.authorization import Authorizer
from spark_log.gateway.access.entry import Admitted, Entry
from spark_log.gateway.access.rights import RIGHTS
from spark_log.gateway.access.tls import Certificates
from spark_log.gateway.api import Api
from spark_log.gateway.appender import Appender
from spark_log.gateway.bulkheads import Bulkheads, Lane
from spark_log.gateway.change_watch import ChangeWatch
from spark_log.gateway.client_reader import ClientReader, start_server
from spark_log.gateway.connection import Connection
from spark_log.gateway.counters import Counters
from spark_log.gateway.gateway_settings import GatewaySettings
from spark_log.gateway.heartbeats import Heartbeats
from spark_log.gateway.live_gateways import GatewaySession, LiveGateway, read_live_gateways
from spark_log.gateway.memory_budget import UNCOUNTED_BYTES, MemoryBudget
from spark_log.gateway.quota_budgets import QuotaBudgets
from spark_log.gateway.record_streams import RecordStreams
from spark_log.gateway.request_context import RequestContext, request_context
from spark_log.gateway.topic_cache import TopicCache
from spark_log.log.log import Log

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_IDLE_CHECKS = 10
"""Within connections.max.idle.ms."""
_INLINE_BYTES = 2 * 1024 * 1024, 16 * 1024 * 1024
"""Batches up to the first size are blobs; a tail of the second size is sealed. Clients send batches of up to 1 MiB."""
_RENEWALS_PER_SESSION = 3
_LAST_ANSWERS_S = 1.0
"""How long a stopped gateway waits for the answers of the requests that it has begun."""
_GRACE_S = 10.0
"""How long it then waits for the appends that it has begun."""
_HEALTH_S = 2.0
_FORGET_S = 10.0
"""After a rewriting, what a gateway has kept of the old segments is forgotten at the next fetch, or in this time."""

APIS: Sequence[Api] = (
    *metadata_requests.APIS,
    *produce_requests.APIS,
    *fetch_requests.APIS,
    *offset_requests.APIS,
    *group_requests.APIS,
    *consumer_group_requests.APIS,
    *committed_offset_requests.APIS,
    *topic_requests.APIS,
    *config_requests.APIS,
    *quota_requests.APIS,
    *partition_requests.APIS,
    *cluster_requests.APIS,
    *group_admin_requests.APIS,
    *transaction_inspection_requests.APIS,
    *transaction_requests.APIS,
    *user_requests.APIS,
    *acl_requests.APIS,
)


class Gateway:
    """Serves Kafka clients on a cluster until `stop`.

    The handlers of requests use its parts: `cluster`, `topics`, `log`, `appender`, `streams`, `changes`, `heartbeats`,
    `quotas`, `bulkheads`, and the memory budgets `frames`, `records` and `responses`.
    """

    def __init__(self, cluster: Cluster, settings: GatewaySettings) -> None:
        self.cluster, self.settings = cluster, settings
        assert all(api.name in RIGHTS for api in APIS), "an API without an entry in the table of rights"
        self.apis: dict[int, Api] = {api.key: api for api in APIS}
        if settings.sasl_mechanisms:
            self.apis |= {api.key: api for api in login.APIS}
        self.topics = TopicCache(cluster)
        self.streams = RecordStreams(cluster)
        self.bulkheads = Bulkheads()
        self.frames, self.records, self.responses = (MemoryBudget(settings.memory_bytes_max) for _ in range(3))
        self.heartbeats = Heartbeats(cluster.store, self.own_call)
        self.quotas = QuotaBudgets(cluster.store, self.own_call)
        self.log: Log
        self.appender: Appender
        self.changes: ChangeWatch
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._hosts: Counter[str] = Counter()
        self._certificates = None if settings.tls is None else Certificates(settings.tls)
        self.authorizer: Authorizer | None = None
        if settings.acls:
            self.authorizer = Authorizer(
                cluster.store, self.own_call, settings.super_users, settings.allow_everyone_if_no_acl_found
            )
        self._entry: Entry | None = None
        if settings.security_protocol != "PLAINTEXT":
            self._entry = Entry(settings, self._certificates, self.apis, cluster.store, self.call)
        self._session = GatewaySession(
            cluster.store, settings.advertised_host, settings.advertised_port, settings.zone, settings.session_ms
        )
        self._stopping = asyncio.Event()
        self.counters = Counters()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def connections(self) -> int:
        """Number of connected clients."""
        return len(self._tasks)

    def health(self) -> str | None:
        """Why this process does not serve; None while it does. For other threads than the event loop's."""
        if self._loop is None or not self.appender.is_alive():
            return "the gateway does not run"
        answer = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
        try:
            answer.result(_HEALTH_S)
        except TimeoutError:
            return f"the event loop has not answered for {_HEALTH_S:.0f} s"
        return None

    async def call(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Run a function that blocks, in a thread of the request that this task answers."""
        context = request_context.get()
        work = partial(function, *arguments, **keywords)
        if context.cpu is not None:
            work = partial(context.cpu.measure, work)
        return await self.bulkheads.run(context.lane, context.client, work, context.name)

    async def compute(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call a function that only computes: in a thread if the request is large, so that the event loop goes on."""
        memory = request_context.get().memory
        if memory is None or memory.frame.bytes <= UNCOUNTED_BYTES:
            return function(*arguments, **keywords)
        return await self.call(function, *arguments, **keywords)

    async def own_call(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Run a function that blocks, for the gateway itself or for many requests together."""
        return await self.bulkheads.run(Lane.OWN, "", partial(function, *arguments, **keywords))

    def live_gateways(self) -> list[LiveGateway]:
        """The gateways of the cluster whose leases have not ended."""
        store = self.cluster.store
        return store.read(lambda connection: read_live_gateways(store, connection))

    def is_at(self, gateway: LiveGateway) -> bool:
        """Whether clients reach this gateway, or another process of it, at that address."""
        return (gateway.host, gateway.port) == (self.settings.advertised_host, self.settings.advertised_port)

    def is_flexible(self, api_key: int, version: int) -> bool:
        """Whether the header of such a request has tagged fields."""
        api = self.apis.get(api_key)
        return api is not None and bool(api.request.flexible_version_q(version))

    async def run(self, started: Callable[[], Any] = lambda: None) -> None:
        """Serve until `stop` is called. `started` is called as soon as clients can connect."""
        loop = self._loop = asyncio.get_running_loop()
        log = self.log = Log(self.cluster, holder="gateway", seal_beside=True, inline_bytes_min=_INLINE_BYTES)
        self.appender = Appender(
            log, self.topics, loop, self.counters, provisional_offsets=self.settings.provisional_offsets
        )
        self.changes = ChangeWatch(self.cluster.store, loop)
        self.appender.start()
        self.changes.start()
        await self.quotas.load()
        shared = self.settings.shares_port
        server = await start_server(self._serve, self.settings.host, self.settings.port, reuse_port=shared)
        running = [
            asyncio.create_task(self.quotas.run()),
            asyncio.create_task(self._close_idle()),
            asyncio.create_task(self._forget_rewritten()),
        ]
        if self._certificates is not None:
            running.append(asyncio.create_task(self._certificates.keep()))
        try:
            if self.settings.has_lease:
                await self.own_call(self._session.renew)
                running.append(asyncio.create_task(self._renew()))
            started()
            await self._stopping.wait()
            for task in running:
                task.cancel()
            if self.settings.has_lease:
                with contextlib.suppress(SparkLogError):
                    await self.own_call(self._session.end)
        finally:
            server.close()
            for _ in range(2):  # the first time they end when they have answered what they have begun
                for task in self._tasks:
                    task.cancel()
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=_LAST_ANSWERS_S)
            self.appender.close()
            await loop.run_in_executor(None, self.appender.join, _GRACE_S)
            self.changes.stop()
            self.bulkheads.close()

    def stop(self) -> None:
        """End gracefully: leave the list of brokers, append what was received, close the connections."""
        self._stopping.set()

    async def _serve(self, reader: ClientReader, writer: asyncio.StreamWriter) -> None:
        host = (writer.get_extra_info("peername") or ("",))[0]
        if (
            len(self._tasks) >= self.settings.connections_max
            or self._hosts[host] >= self.settings.connections_per_ip_max
        ):
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._hosts[host] += 1
        connection: Connection | None = None
        try:
            refused_after_s = self.quotas.refused_after_s(host)
            if refused_after_s > 0:
                await asyncio.sleep(refused_after_s)
                writer.close()
                return
            admitted: Admitted | None = Admitted(reader, writer)
            if self._entry is not None:
                request_context.set(RequestContext(Lane.LOGIN, host))
                admitted = await self._entry.admit(reader, writer)
            if admitted is not None:
                connection = Connection(self, admitted)
                self._connections.add(connection)
                await connection.serve()
        finally:
            self._tasks.discard(task)
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
            if connection is not None:
                self._connections.discard(connection)

    async def _close_idle(self) -> None:
        """Close the connections that have sent no whole request for connections.max.idle.ms."""
        idle_s = self.settings.connections_max_idle_ms / 1000
        while True:
            await asyncio.sleep(idle_s / _IDLE_CHECKS)
            until_s = clock.monotonic_s() - idle_s
            for connection in list(self._connections):
                since_s = connection.idle_since_s
                if since_s is not None and since_s < until_s:
                    connection.close()

    async def _forget_rewritten(self) -> None:
        while True:
            await asyncio.sleep(_FORGET_S)
            with contextlib.suppress(SparkLogError):  # the store is away: the next time
                await self.own_call(self.streams.forget_rewritten)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.settings.session_ms / 1000 / _RENEWALS_PER_SESSION)
            try:
                await self.own_call(self._session.renew)
            except SparkLogError as error:
                logger.warning("the gateway's lease was not renewed: %s", redact(str(error)))
