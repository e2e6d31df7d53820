"""The use of limited clients at all gateways, and how long they wait.

A gateway charges a client at once, against what it knows. A few times a second it adds its charges to those of the
other gateways in the metadata store, and learns the sum. A client may therefore exceed its rate by what the gateways
accept within that interval; it is a debt that it waits for afterwards, so the rate over a longer time is exact. While
the store is away, each gateway goes on with what it knows.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from spark_log import clock
from spark_log.errors import SparkLogError, redact
from spark_log.gateway.api import Client
from spark_log.metadata.store import Store
from spark_log.quotas.quota_rows import delete_old_use, read_quotas, record_use
from spark_log.quotas.rules import (
    BURST_S,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Bucket,
    Limit,
    Quotas,
    limit_of_address,
    limit_of_client,
    used_until_s,
    wait_s,
)

logger = logging.getLogger(__name__)

_SHARE_S = 0.1
_RELOAD_S = 2.0
"""After this time every gateway knows a changed quota."""
_WAIT_S_MAX = 10.0
"""A connection is muted for so long at most (quota.window.num); clients give up requests after 30 s."""
_CLIENTS_MAX = 10_000
"""Clients whose limits are remembered."""


class QuotaBudgets:
    """Used by the event loop only; `call` runs a function that blocks."""

    def __init__(self, store: Store, call: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._store, self._call = store, call
        self._quotas: Quotas = {}
        self._limits: dict[tuple[str, str, str], Limit | None] = {}
        self._until_s: dict[Bucket, float] = {}
        self._unshared_s: dict[Bucket, float] = {}
        self._charged = asyncio.Event()
        self.measures_cpu = False
        """Whether a quota request_percentage exists."""

    async def load(self) -> None:
        """Read the quotas anew."""
        self._quotas = await self._call(read_quotas, self._store)
        self._limits.clear()
        self.measures_cpu = any(REQUEST_PERCENTAGE in values for values in self._quotas.values())
        if self._quotas:
            await self._call(delete_old_use, self._store)
            now_s = clock.monotonic_s()
            self._until_s = {bucket: until_s for bucket, until_s in self._until_s.items() if until_s > now_s}

    def charge(self, config: str, client: Client, units: float) -> float:
        """Charge a client, and return for how many seconds its connection must be muted."""
        return self._charge(self._limit(config, client), units) if self._quotas else 0.0

    def charge_connection(self, address: str) -> float:
        """Charge an IP address for a connection; it is refused after so many seconds, if there are any."""
        return self._charge(limit_of_address(self._quotas, address), 1) if self._quotas else 0.0

    def fetch_bytes_max(self, client: Client, asked: int) -> int:
        """How much a fetch response may have: no more than the client may read within a burst."""
        limit = self._limit(CONSUMER_BYTE_RATE, client) if self._quotas else None
        return asked if limit is None else min(asked, max(1, int(limit.rate * BURST_S)))

    async def run(self) -> None:
        """Share the charges with the other gateways, and follow changes of the quotas, until cancelled."""
        load_at_s = clock.monotonic_s() + _RELOAD_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, load_at_s - clock.monotonic_s())):
                    await self._charged.wait()
            try:
                await self._share()
                if clock.monotonic_s() >= load_at_s:
                    await self.load()
                    load_at_s = clock.monotonic_s() + _RELOAD_S
            except SparkLogError as error:
                logger.warning("quotas are not shared with other gateways: %s", redact(str(error)))
                load_at_s = clock.monotonic_s() + _RELOAD_S
            await asyncio.sleep(_SHARE_S)

    async def _share(self) -> None:
        self._charged.clear()
        shared_s, self._unshared_s = self._unshared_s, {}
        if not shared_s:
            return
        try:
            left_s: dict[Bucket, float] = await self._call(record_use, self._store, shared_s)
        except SparkLogError:
            for bucket, seconds in shared_s.items():
                self._unshared_s[bucket] = self._unshared_s.get(bucket, 0.0) + seconds
            raise
        now_s = clock.monotonic_s()
        for bucket, seconds in left_s.items():
            self._until_s[bucket] = now_s + seconds + self._unshared_s.get(bucket, 0.0)

    def _limit(self, config: str, client: Client) -> Limit | None:
        key = (config, client.user, client.client_id)
        if key not in self._limits:
            if len(self._limits) >= _CLIENTS_MAX:
                self._limits.clear()
            self._limits[key] = limit_of_client(self._quotas, *key)
        return self._limits[key]

    def _charge(self, limit: Limit | None, units: float) -> float:
        if limit is None:
            return 0.0
        now_s, seconds = clock.monotonic_s(), units / limit.rate
        until_s = used_until_s(self._until_s.get(limit.bucket, 0.0), now_s, seconds, rate=1.0)
        self._until_s[limit.bucket] = until_s
        self._unshared_s[limit.bucket] = self._unshared_s.get(limit.bucket, 0.0) + seconds
        self._charged.set()
        return min(wait_s(until_s, now_s), _WAIT_S_MAX)
