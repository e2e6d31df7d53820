"""Bundles the parts of a gateway process that the handlers of requests use."""

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
from spark_log.gateway.limits.bulkheads import Bulkheads, Lane, request_context
from spark_log.gateway.limits.memory_budget import UNCOUNTED_BYTES, MemoryBudget
from spark_log.gateway.limits.quota_budgets import QuotaBudgets
from spark_log.gateway.limits.request_memory import RequestMemory
from spark_log.gateway.live_gateways import LiveGateway, read_live_gateways
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.records.appender import Appender
from spark_log.gateway.records.fetch_positions import FetchWatches
from spark_log.gateway.records.record_streams import RecordStreams
from spark_log.gateway.records.topic_cache import TopicCache
from spark_log.gateway.shares.share_sessions import Shares
from spark_log.gateway.topic_stores import TopicStores
from spark_log.maintenance.client_log import ClientLog

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")

ELEMENT_BYTES = 240
"""Memory of a struct of a response with a few numbers: its object, and its encoded bytes."""
PARTITION_BYTES, TOPIC_BYTES = 600, 500
"""Memory of the description of a partition and of a topic, including the rows that are read for it."""
_VALUE_BYTES = 40
"""Memory of a string or an array element in addition to its bytes, which exist twice while the response is encoded."""
_PORTION_BYTES = 256 * 1024
"""The approximate size of the part of a response that is made before memory is held for it."""
_INLINE_BYTES = 2 * 1024 * 1024, 16 * 1024 * 1024
"""Batches up to the first size are stored as blobs, and a tail of the second size is sealed. Clients send batches of up
to 1 MiB."""


class Needed(NamedTuple):
    """The memory that a response needs before it is made."""

    bytes: int


@dataclass(frozen=True)
class Services:
    """The parts of a gateway that serve requests. Each handler gets them; this module imports no handler."""

    cluster: Cluster
    settings: GatewaySettings
    bulkheads: Bulkheads
    topics: TopicCache
    stores: TopicStores
    log: ClientLog
    appender: Appender
    streams: RecordStreams
    changes: ChangeWatch
    fetch_watches: FetchWatches
    heartbeats: Heartbeats
    classic_waits: ClassicWaits
    shares: Shares
    quotas: QuotaBudgets
    frames: MemoryBudget
    records: MemoryBudget
    responses: MemoryBudget
    authorizer: Authorizer | None
    """Decides on the rights of clients. None means that the gateway does not check rights."""
    counters: Counters
    versions: Mapping[int, tuple[int, int]] = field(repr=False)
    """The lowest and highest version of each API that clients see."""

    @classmethod
    def of(cls, cluster: Cluster, settings: GatewaySettings, versions: Mapping[int, tuple[int, int]]) -> "Services":
        """Create the parts of a gateway in its running event loop, without starting them."""
        loop, store = asyncio.get_running_loop(), cluster.store
        bulkheads, topics, counters = Bulkheads(), TopicCache(cluster), Counters()
        stores = TopicStores(cluster, topics)
        changes = ChangeWatch(store, loop)
        log = ClientLog(cluster, holder="gateway", in_thread=True, inline_bytes_min=_INLINE_BYTES)
        frames, records, responses, sessions = (MemoryBudget(settings.memory_bytes_max) for _ in range(4))
        return cls(
            cluster=cluster, settings=settings, bulkheads=bulkheads, topics=topics, stores=stores, log=log,
            appender=Appender(log, topics, stores, loop, counters, provisional_offsets=settings.provisional_offsets),
            streams=RecordStreams(stores),
            changes=changes,
            fetch_watches=FetchWatches(topics, stores, changes, partial(bulkheads.run, Lane.FETCH)),
            heartbeats=Heartbeats(store, bulkheads.run_own),
            classic_waits=ClassicWaits(store, changes, bulkheads.run_own),
            shares=Shares(cluster, log, changes, bulkheads, sessions),
            quotas=QuotaBudgets(store, bulkheads.run_own),
            frames=frames, records=records, responses=responses,
            authorizer=Authorizer(
                store, bulkheads.run_own, settings.super_users, settings.allow_everyone_if_no_acl_found
            ) if settings.acls else None,
            counters=counters, versions=versions,
        )  # fmt: skip

    async def call(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call a blocking function in a thread, within the limits of the request that this task answers."""
        context = request_context.get()
        work = partial(function, *arguments, **keywords)
        if context.cpu is not None:
            work = partial(context.cpu.measure, work)
        return await self.bulkheads.run(context.lane, context.client, work, context.name, context.memory)

    async def compute(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call a function that only computes. For a large request it runs in a thread, to keep the event loop free."""
        memory = request_context.get().memory
        if memory is None or not memory.is_large:
            return function(*arguments, **keywords)
        return await self.call(function, *arguments, **keywords)

    async def in_portions(self, make: Callable[[K], Message], keys: Iterable[K]) -> list[Message]:
        """Make an element of the response for each distinct key, in the order of the keys, in a thread.

        A portion for which there is no memory is dropped, and made again when there is enough, so that waiting requests
        hold no uncounted memory. Raises ResponseTooLargeError above response.max.bytes.
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
        """Call `make` in a thread. Its argument is the memory in bytes that the response may use. If the response needs
        more, `make` returns Needed, and is called again when there is as much. Raises ResponseTooLargeError.
        """
        memory = _memory()
        while isinstance(made := await self.call(make, max(UNCOUNTED_BYTES, memory.response_bytes)), Needed):
            await memory.grow_response(made.bytes - memory.response_bytes)
        return made

    def live_gateways(self) -> list[LiveGateway]:
        """Return the gateways of the cluster whose leases have not ended."""
        store = self.cluster.store
        return store.read(lambda connection: read_live_gateways(store, connection))

    def is_at(self, gateway: LiveGateway) -> bool:
        """Whether the address of `gateway` is the advertised address of this process."""
        return (gateway.host, gateway.port) == (self.settings.advertised_host, self.settings.advertised_port)


def _memory() -> RequestMemory:
    """Return the memory of the request that this task answers."""
    memory = request_context.get().memory
    assert memory is not None
    return memory


def size_of(element: Message) -> int:
    """Estimate the memory in bytes of a struct of a response, including the structs in it."""
    size, left = 0, [element]
    while left:
        one = left.pop()
        if isinstance(one, str | bytes):
            size += _VALUE_BYTES + 2 * len(one)
        elif isinstance(one, list):
            if one and isinstance(one[0], int):
                size += _VALUE_BYTES * len(one)
            else:
                left += one
        elif hasattr(one, "_struct"):
            size += ELEMENT_BYTES
            left += (getattr(one, name) for name in type(one)._struct.fields)
    return size
