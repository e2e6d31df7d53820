"""Runs a gateway process: listens, serves connections, and holds its lease."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.errors import SparkLogError, redact
from spark_log.gateway.access import acl_requests, login, quota_requests, user_requests
from spark_log.gateway.access.entry import Admitted, Entry
from spark_log.gateway.access.tls import Certificates
from spark_log.gateway.api import Api
from spark_log.gateway.client_reader import ClientReader, end_connection, notice_gone, start_server
from spark_log.gateway.connection import Connection
from spark_log.gateway.gateway_settings import GatewaySettings
from spark_log.gateway.groups import (
    committed_offset_requests,
    consumer_group_requests,
    group_admin_requests,
    group_descriptions,
    group_requests,
    streams_group_requests,
)
from spark_log.gateway.limits.bulkheads import Lane, RequestContext, request_context
from spark_log.gateway.limits.networks import network_of
from spark_log.gateway.live_gateways import GatewaySession
from spark_log.gateway.records import fetch_requests, offset_requests, produce_requests
from spark_log.gateway.services import Services
from spark_log.gateway.shares import share_admin_requests, share_group_requests, share_requests
from spark_log.gateway.topics import (
    cluster_requests,
    config_requests,
    metadata_requests,
    partition_requests,
    topic_requests,
)
from spark_log.gateway.transactions import transaction_inspection_requests, transaction_requests

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_GONE_EVERY_S = 1.0
_IDLE_CHECKS = 10
"""The number of checks for idle connections within connections.max.idle.ms."""
_RENEWALS_PER_SESSION = 3
_LAST_ANSWERS_S = 1.0
"""How long a stopped gateway waits for the answers of the requests that it has begun."""
_GRACE_S = 10.0
"""How long a stopped gateway then waits for the appends that it has begun."""
_HEALTH_S = 2.0
_AGAIN_S = 1.0
_REFUSED_S = 0.1
"""The interval of checks whether the store was upgraded for a newer version. If so, the gateway ends."""
_FORGET_S = 10.0
"""Cached records of segments that were rewritten are forgotten at the next fetch, or after this time."""

APIS: Sequence[Api] = (
    *metadata_requests.APIS,
    *produce_requests.APIS,
    *fetch_requests.APIS,
    *offset_requests.APIS,
    *group_requests.APIS,
    *consumer_group_requests.APIS,
    *group_descriptions.APIS,
    *share_group_requests.APIS,
    *share_requests.APIS,
    *share_admin_requests.APIS,
    *streams_group_requests.APIS,
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
    """Serves Kafka clients on a cluster until `stop`. Create it in the event loop that runs it."""

    def __init__(self, cluster: Cluster, settings: GatewaySettings) -> None:
        self._cluster, self._settings = cluster, settings
        apis = (*APIS, *login.APIS) if settings.sasl_mechanisms else APIS
        self._apis: dict[int, Api] = {api.key: api for api in apis}
        self._loop = asyncio.get_running_loop()
        self.services = Services.of(cluster, settings, {api.key: api.advertised for api in apis})
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._networks: Counter[str] = Counter()
        self._certificates = None if settings.tls is None else Certificates(settings.tls)
        self._entry: Entry | None = None
        if settings.security_protocol != "PLAINTEXT":
            self._entry = Entry(self.services, self._certificates, self._apis)
        self._session = GatewaySession(
            cluster.store, settings.advertised_host, settings.advertised_port, settings.zone, settings.session_ms
        )
        self._stopping = asyncio.Event()

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return len(self._tasks)

    def health(self) -> str | None:
        """Return why this process does not serve, or None while it does. Call it outside the event loop's thread."""
        if not self.services.appender.is_alive():
            return "the gateway does not run"
        answer = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
        try:
            answer.result(_HEALTH_S)
        except TimeoutError:
            return f"the event loop has not answered for {_HEALTH_S:.0f} s"
        return None

    async def run(self, started: Callable[[], Any] = lambda: None) -> None:
        """Serve until `stop` is called. `started` is called as soon as clients can connect.

        Raises UnsupportedVersionError when the store was upgraded for a newer version.
        """
        services = self.services
        services.appender.start()
        services.changes.start()
        await services.quotas.load()
        shared = self._settings.shares_port
        server = await start_server(self._serve, self._settings.host, self._settings.port, reuse_port=shared)
        running = [
            asyncio.create_task(_kept(run))
            for run in (services.quotas.run, self._close_idle, self._notice_gone, self._forget_rewritten)
        ]
        running.append(asyncio.create_task(self._stop_if_refused()))
        if self._certificates is not None:
            running.append(asyncio.create_task(_kept(self._certificates.keep)))
        try:
            if self._settings.has_lease:
                await self.services.bulkheads.run_own(self._session.renew)
                running.append(asyncio.create_task(_kept(self._renew)))
            started()
            await self._stopping.wait()
            for task in running:
                task.cancel()
            if self._settings.has_lease:
                with contextlib.suppress(SparkLogError):
                    await self.services.bulkheads.run_own(self._session.end)
        finally:
            server.close()
            for _ in range(2):  # after the first cancellation they answer the requests that they have begun
                for task in self._tasks:
                    task.cancel()
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=_LAST_ANSWERS_S)
            services.appender.close()
            await self._loop.run_in_executor(None, services.appender.join, _GRACE_S)
            services.changes.stop()
            services.shares.start_lookups.close()
            services.bulkheads.close()
            services.stores.close()
        self._cluster.store.fence.raise_refusal()

    def stop(self) -> None:
        """Let `run` leave the list of brokers, append the received records, close the connections and return."""
        self._stopping.set()

    async def _serve(self, reader: ClientReader, writer: asyncio.StreamWriter) -> None:
        host = (writer.get_extra_info("peername") or ("",))[0]
        network = network_of(host)
        if (
            len(self._tasks) >= self._settings.connections_max
            or self._networks[network] >= self._settings.connections_per_ip_max
        ):
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._networks[network] += 1
        connection: Connection | None = None
        try:
            refused_after_s = self.services.quotas.refused_after_s(host)
            if refused_after_s > 0:
                await asyncio.sleep(refused_after_s)
                writer.close()
                return
            admitted: Admitted | None = Admitted(reader, writer)
            if self._entry is not None:
                request_context.set(RequestContext(Lane.LOGIN, network))
                admitted = await self._entry.admit(reader, writer)
            if admitted is not None:
                connection = Connection(self.services, self._apis, admitted)
                self._connections.add(connection)
                try:
                    await connection.serve()
                finally:
                    await end_connection(admitted.writer)
        finally:
            self._tasks.discard(task)
            self._networks[network] -= 1
            if not self._networks[network]:
                del self._networks[network]
            if connection is not None:
                self._connections.discard(connection)
                self.services.shares.connection_ended(connection.connection_id)

    async def _stop_if_refused(self) -> None:
        while self._cluster.store.fence.refusal is None:
            await asyncio.sleep(_REFUSED_S)
        self.stop()

    async def _close_idle(self) -> None:
        """Close the connections whose clients have sent no whole request, or have taken no byte of an answer, for
        connections.max.idle.ms.
        """
        idle_s = self._settings.connections_max_idle_ms / 1000
        while True:
            await asyncio.sleep(idle_s / _IDLE_CHECKS)
            until_s = clock.monotonic_s() - idle_s
            for connection in list(self._connections):
                since_s = connection.idle_since_s()
                if since_s is not None and since_s < until_s:
                    connection.close()

    async def _notice_gone(self) -> None:
        """End, every second, the answers to clients that have disconnected while the gateway did not read them."""
        while True:
            await asyncio.sleep(_GONE_EVERY_S)
            notice_gone(each.reader for each in self._connections if each.waits_for_answer)

    async def _forget_rewritten(self) -> None:
        while True:
            await asyncio.sleep(_FORGET_S)
            with contextlib.suppress(SparkLogError):  # the store is unavailable; the next round tries again
                await self.services.bulkheads.run_own(self.services.streams.forget_rewritten)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._settings.session_ms / 1000 / _RENEWALS_PER_SESSION)
            try:
                await self.services.bulkheads.run_own(self._session.renew)
            except SparkLogError as error:
                logger.warning("the gateway's lease was not renewed: %s", redact(str(error)))


async def _kept(run: Callable[[], Awaitable[None]]) -> None:
    """Call `run`, which does not return, until cancelled. If it fails, log the error and call it again in a second."""
    while True:
        try:
            await run()
        except Exception:
            logger.exception("a background task of the gateway failed")
        await asyncio.sleep(_AGAIN_S)
