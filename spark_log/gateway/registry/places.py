"""Limits how many requests are read and answered at the same time, for each client's network and in all.

A large body is read only after it has a place. One call parses it as JSON. This may take a quarter of a second, during
which no other Python thread runs. So only one large request is answered at a time. The time of a small one is not known
before. Therefore small requests of a network that has used much CPU time lately are answered like large ones.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakValueDictionary

from starlette.exceptions import HTTPException

from spark_log import clock
from spark_log.cluster.quotas.rules import used_until_s

SMALL_BYTES = 64 * 1024
"""The largest small body. uvicorn reads about as much before the application requests the body."""
REQUESTS_MAX = 200
"""The number of requests that wait or are answered. Above it, a network gets no more than its equal share."""
LARGE_BODIES_MAX = 16
"""The number of large bodies in memory. A client that sends slowly occupies one of these places."""
_OF_NETWORK_MAX = 10
"""The number of requests of a network that are answered at the same time; further ones wait. There are 40 threads."""
_WITH_BODY_MAX, _WITH_BODY_OF_NETWORK_MAX = 8, 2
"""The number of requests with a body that are answered at the same time, in all and for each network. Such requests
parse and compare schemas, which may take seconds of a core; the others only read."""
_CPU_S_MAX, _CPU_FORGOTTEN = 1.0, 1 / 30
"""The CPU seconds above which a network has used much CPU time, and how many are forgiven for each second of time."""
_NETWORKS_MAX = 1_000

_Semaphores = WeakValueDictionary[str, asyncio.Semaphore]


class Places:
    """The places of requests. Used by one event loop."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()
        """The number of requests of each network."""
        self._of_networks: _Semaphores = WeakValueDictionary()
        self._large_of_networks: _Semaphores = WeakValueDictionary()
        self._with_body, self._with_body_of_networks = asyncio.Semaphore(_WITH_BODY_MAX), _Semaphores()
        self._large_bodies, self._large_answer = asyncio.Semaphore(LARGE_BODIES_MAX), asyncio.Semaphore(1)
        self._forgiven_s: dict[str, float] = {}
        """The time at which all CPU time of each network is forgiven."""

    @contextmanager
    def request(self, network: str) -> Iterator[None]:
        """Hold a place for a whole request. Raises HTTPException (503) if its network has too many requests."""
        part = REQUESTS_MAX // len({*self._begun, network})
        if self._begun.total() >= REQUESTS_MAX and self._begun[network] >= max(part, 1):
            raise HTTPException(503, "the registry has too many requests")
        self._begun[network] += 1
        try:
            yield
        finally:
            self._begun[network] -= 1
            if not self._begun[network]:
                del self._begun[network]

    @asynccontextmanager
    async def body(self, network: str, size: int) -> AsyncIterator[None]:
        """Hold a place for a large body until its request is answered. A network has one place for large bodies."""
        if size <= SMALL_BYTES:
            yield
            return
        async with self._large_of_networks.setdefault(network, asyncio.Semaphore(1)), self._large_bodies:
            yield

    @asynccontextmanager
    async def answer(self, network: str, size: int) -> AsyncIterator[None]:
        """Hold a place while a request, whose body has been read, is answered."""
        if size == 0:
            async with self._of_networks.setdefault(network, asyncio.Semaphore(_OF_NETWORK_MAX)):
                yield
            return
        async with self._with_body_of_networks.setdefault(network, asyncio.Semaphore(_WITH_BODY_OF_NETWORK_MAX)):
            if size <= SMALL_BYTES and not self._has_used_much(network):
                async with self._with_body:
                    yield
                return
            async with self._large_answer, self._with_body:
                yield

    def charge(self, network: str, cpu_s: float) -> None:
        """Add the CPU time of a request that was answered."""
        now_s = clock.monotonic_s()
        if len(self._forgiven_s) >= _NETWORKS_MAX:
            self._forgiven_s = {name: until_s for name, until_s in self._forgiven_s.items() if until_s > now_s}
        self._forgiven_s[network] = used_until_s(self._forgiven_s.get(network, 0.0), now_s, cpu_s, _CPU_FORGOTTEN)

    def _has_used_much(self, network: str) -> bool:
        return self._forgiven_s.get(network, 0.0) - clock.monotonic_s() > _CPU_S_MAX / _CPU_FORGOTTEN
