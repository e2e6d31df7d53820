"""What the handlers of requests use: one value for each gateway process."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple, ParamSpec, TypeVar

from spark_log.cluster.cluster import Cluster
from spark_log.gateway.access.access import Authorizer
from spark_log.gateway.change_watch import ChangeWatch
from spark_log.gateway.counters import Counters
from spark_log.gateway.gateway_settings import GatewaySettings
from spark_log.gateway.groups.classic_waits import ClassicWaits
from spark_log.gateway.groups.heartbeat_sharing import Heartbeats
from spark_log.gateway.limits.bulkheads import Bulkheads
from spark_log.gateway.limits.memory_budget import UNCOUNTED_BYTES, MemoryBudget
from spark_log.gateway.limits.quota_budgets import QuotaBudgets
from spark_log.gateway.limits.request_context import request_context
from spark_log.gateway.limits.request_memory import RequestMemory
from spark_log.gateway.limits.response_sizes import size_of
from spark_log.gateway.live_gateways import LiveGateway, read_live_gateways
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.records.appender import Appender
from spark_log.gateway.records.record_streams import RecordStreams
from spark_log.gateway.records.topic_cache import TopicCache
from spark_log.maintenance.client_log import ClientLog

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")

_PORTION_BYTES = 256 * 1024
"""About as much of a response is made before memory is held for it."""
_INLINE_BYTES = 2 * 1024 * 1024, 16 * 1024 * 1024
"""Batches up to the first size are blobs; a tail of the second size is sealed. Clients send batches of up to 1 MiB."""


class Needed(NamedTuple):
    """The memory that a response needs before it is made."""

    bytes: int


@dataclass(frozen=True)
class Services:
    """The parts of a gateway that serve requests. It imports no handler, and each handler gets it."""

    cluster: Cluster
    settings: GatewaySettings
    bulkheads: Bulkheads
    topics: TopicCache
    log: ClientLog
    appender: Appender
    streams: RecordStreams
    changes: ChangeWatch
    heartbeats: Heartbeats
    classic_waits: ClassicWaits
    quotas: QuotaBudgets
    frames: MemoryBudget
    records: MemoryBudget
    responses: MemoryBudget
    authorizer: Authorizer | None
    """None: the gateway does not check rights."""
    counters: Counters
    versions: Mapping[int, tuple[int, int]] = field(repr=False)
    """The lowest and highest version of each API that clients are told."""

    @classmethod
    def of(cls, cluster: Cluster, settings: GatewaySettings, versions: Mapping[int, tuple[int, int]]) -> "Services":
        """Of a gateway whose event loop runs. Nothing is started yet."""
        loop, store = asyncio.get_running_loop(), cluster.store
        bulkheads, topics, counters = Bulkheads(), TopicCache(cluster), Counters()
        changes = ChangeWatch(store, loop)
        log = ClientLog(cluster, holder="gateway", in_thread=True, inline_bytes_min=_INLINE_BYTES)
        frames, records, responses = (MemoryBudget(settings.memory_bytes_max) for _ in range(3))
        return cls(
            cluster=cluster, settings=settings, bulkheads=bulkheads, topics=topics, log=log,
            appender=Appender(log, topics, loop, counters, provisional_offsets=settings.provisional_offsets),
            streams=RecordStreams(cluster),
            changes=changes,
            heartbeats=Heartbeats(store, bulkheads.run_own),
            classic_waits=ClassicWaits(store, changes, bulkheads.run_own),
            quotas=QuotaBudgets(store, bulkheads.run_own),
            frames=frames, records=records, responses=responses,
            authorizer=Authorizer(
                store, bulkheads.run_own, settings.super_users, settings.allow_everyone_if_no_acl_found
            ) if settings.acls else None,
            counters=counters, versions=versions,
        )  # fmt: skip

    async def call(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Run a function that blocks, in a thread of the request that this task answers."""
        context = request_context.get()
        work = partial(function, *arguments, **keywords)
        if context.cpu is not None:
            work = partial(context.cpu.measure, work)
        return await self.bulkheads.run(context.lane, context.client, work, context.name, context.memory)

    async def compute(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call a function that only computes: in a thread if the request is large, so that the event loop goes on."""
        memory = request_context.get().memory
        if memory is None or not memory.is_large:
            return function(*arguments, **keywords)
        return await self.call(function, *arguments, **keywords)

    async def in_portions(self, make: Callable[[K], Message], keys: Iterable[K]) -> list[Message]:
        """An element of the response for each key, once for equal keys, in their order. They are made in a thread.

        A portion that finds no memory is thrown away, and made again when there is as much as it takes: so requests
        that wait hold nothing uncounted. ResponseTooLargeError above response.max.bytes.
        """
        memory, names = _memory(), list(dict.fromkeys(keys))
        elements: list[Message] = []

        def portion() -> tuple[list[Message], int]:
            made: list[Message] = []
            size = 0
            for key in islice(names, len(elements), None):
                made.append(make(key))
                size += size_of(made[-1])
                if size >= _PORTION_BYTES:
                    break
            return made, size

        while len(elements) < len(names):
            made, size = await self.call(portion)
            if not memory.grow_response_at_once(size):
                del made
                await memory.grow_response(size)
                made, _ = await self.call(portion)
            elements += made
        return elements

    async def call_in_memory(self, make: Callable[[int], T | Needed]) -> T:
        """Call a function that blocks, in a thread. Its argument is the memory that it may use for the response; if it
        needs more it returns how much, and is called again when there is so much. Errors as of `in_portions`.
        """
        memory = _memory()
        while isinstance(made := await self.call(make, max(UNCOUNTED_BYTES, memory.response_bytes)), Needed):
            await memory.grow_response(made.bytes - memory.response_bytes)
        return made

    def live_gateways(self) -> list[LiveGateway]:
        """The gateways of the cluster whose leases have not ended."""
        store = self.cluster.store
        return store.read(lambda connection: read_live_gateways(store, connection))

    def is_at(self, gateway: LiveGateway) -> bool:
        """Whether clients reach this gateway, or another process of it, at that address."""
        return (gateway.host, gateway.port) == (self.settings.advertised_host, self.settings.advertised_port)


def _memory() -> RequestMemory:
    """That of the request that this task answers."""
    memory = request_context.get().memory
    assert memory is not None
    return memory
