"""Counts the use of limited clients at all gateways, and delays their requests.

Use and waiting belong to the bucket of a quota, not to a connection: a client cannot shorten them by more connections.
The requests of a bucket are admitted one after the other, each when the use before it is paid for. The charge is what
is known at the admission: the size of a produce request, the size of a fetch response before it is sent, and the CPU
time of the bucket's last request, which is corrected at the end.

A gateway charges at once, against the use that it knows. A few times a second it adds its charges to those of the other
gateways in the metadata store, and reads the sum. Clients may therefore exceed a rate by what the gateways accept
within that interval. Afterwards they wait until this debt is paid, so the rate over a longer time is exact. While the
store is unavailable, each gateway continues with the use that it knows.

A gateway shares a limited number of buckets at a time, those of the largest charges, because each is a row of the store
and clients choose their ids. The charges of the others are shared later, if they are not paid for by then.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from heapq import nlargest
from typing import Any
from weakref import WeakValueDictionary

from spark_log import clock
from spark_log.cluster.quotas.quota_rows import delete_old_use, read_quotas, record_use
from spark_log.cluster.quotas.rules import (
    BURST_S,
    CONSUMER_BYTE_RATE,
    Bucket,
    Quotas,
    bucket_of_address,
    bucket_of_client,
    used_until_s,
    wait_s,
)
from spark_log.errors import SparkLogError, redact
from spark_log.metadata.store import Store

logger = logging.getLogger(__name__)

_SHARE_S = 0.1
_RELOAD_S = 2.0
"""After this time every gateway knows a changed quota."""
_LOOK_S = 1.0
"""The interval at which a waiting request checks whether the quota has changed or its client has disconnected."""
_REFUSAL_S_MAX = 10.0
"""The longest time that a connection is held before it is refused."""
_CPU_S_OF_FIRST = 0.001
"""The CPU seconds that the first request of a bucket is charged until it has ended."""
_SHARED_MAX = 100
"""The number of buckets that are shared at a time."""
_CLIENTS_MAX = 10_000
"""The number of clients whose limits are remembered."""


class QuotaBudgets:
    """Admits and charges the requests of limited clients. Used by the event loop only; `call` runs a blocking function.

    Its methods take the `user` and the `client_id` of the client that sends a request.
    """

    def __init__(self, store: Store, call: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._store, self._call = store, call
        self._quotas: Quotas = {}
        self._buckets: dict[tuple[str, str, str], Bucket | None] = {}
        self._until_s: dict[Bucket, float] = {}
        self._unshared_s: dict[Bucket, float] = {}
        self._turns: WeakValueDictionary[Bucket, asyncio.Lock] = WeakValueDictionary()
        self._cpu_s: dict[Bucket, float] = {}
        """CPU seconds of the last request of each bucket."""
        self._charged = asyncio.Event()

    async def load(self) -> None:
        """Read the quotas again, and delete old use from the store."""
        now_s = clock.monotonic_s()
        self._until_s = {bucket: until_s for bucket, until_s in self._until_s.items() if until_s > now_s}
        self._quotas = await self._call(read_quotas, self._store)
        self._buckets.clear()
        if self._quotas:
            await self._call(delete_old_use, self._store)

    async def admit(
        self, config: str, user: str, client_id: str, units: float, is_gone: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait for the turn of a request, and until the use before it is paid for; then charge it.

        Raises ConnectionAbortedError if the client has disconnected meanwhile.
        """
        bucket = self.bucket(config, user, client_id)
        if bucket is None:
            return
        turn = self._turns.setdefault(bucket, asyncio.Lock())
        waited = turn.locked()
        async with turn:
            while bucket is not None and (left_s := self.wait_s(bucket)) > 0:
                waited = True
                await asyncio.sleep(min(left_s, _LOOK_S))
                if is_gone():
                    break
                bucket = self.bucket(config, user, client_id)
            if waited and is_gone():
                raise ConnectionAbortedError
            self.charge(bucket, units)

    def charge(self, bucket: Bucket | None, units: float) -> None:
        """Charge units without waiting. Negative units reduce the use."""
        if bucket is None or units == 0:
            return
        now_s = clock.monotonic_s()
        before_s = max(now_s, self._until_s.get(bucket, 0.0))
        self._until_s[bucket] = used_until_s(before_s, now_s, units, bucket.rate)
        used_s = self._until_s[bucket] - before_s
        self._unshared_s[bucket] = self._unshared_s.get(bucket, 0.0) + used_s
        self._charged.set()

    def wait_s(self, bucket: Bucket | None) -> float:
        """Return how long a request that is sent now has to wait."""
        return 0.0 if bucket is None else wait_s(self._until_s.get(bucket, 0.0), clock.monotonic_s())

    def refused_after_s(self, address: str) -> float:
        """Charge an IP address for a connection, and return 0 if it is accepted. Otherwise return the number of seconds
        after which it is refused.
        """
        bucket = bucket_of_address(self._quotas, address) if self._quotas else None
        left_s = self.wait_s(bucket)
        if left_s > 0:  # not charged, so that attempts do not keep an address out for ever
            return min(left_s, _REFUSAL_S_MAX)
        self.charge(bucket, 1)
        return 0.0

    def expected_cpu_s(self, bucket: Bucket) -> float:
        """Return the CPU seconds of the bucket's last request."""
        return self._cpu_s.get(bucket, _CPU_S_OF_FIRST)

    def charge_cpu(self, bucket: Bucket, seconds: float, expected_s: float) -> None:
        """Correct the charge of a request that was admitted with `expected_s`."""
        if len(self._cpu_s) >= _CLIENTS_MAX:
            self._cpu_s.clear()
        self._cpu_s[bucket] = seconds
        self.charge(bucket, seconds - expected_s)

    def fetch_bytes_max(self, user: str, client_id: str, asked: int) -> int:
        """Return how many bytes a fetch response may have: `asked`, or less if the client may read less in a burst."""
        bucket = self.bucket(CONSUMER_BYTE_RATE, user, client_id)
        return asked if bucket is None else min(asked, max(1, int(bucket.rate * BURST_S)))

    def bucket(self, config: str, user: str, client_id: str) -> Bucket | None:
        """Return the bucket of a client, or None if the client is unlimited."""
        if not self._quotas:
            return None
        key = (config, user, client_id)
        if key not in self._buckets:
            if len(self._buckets) >= _CLIENTS_MAX:
                self._buckets.clear()
            self._buckets[key] = bucket_of_client(self._quotas, *key)
        return self._buckets[key]

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
        used_s = self._unshared_s
        if not used_s:
            return
        most = nlargest(_SHARED_MAX, used_s, key=lambda bucket: abs(used_s[bucket]))
        shared_s, now_s = {bucket: used_s.pop(bucket) for bucket in most}, clock.monotonic_s()
        self._unshared_s = {
            bucket: seconds for bucket, seconds in used_s.items() if self._until_s.get(bucket, 0.0) > now_s
        }
        if self._unshared_s:
            self._charged.set()
        try:
            left_s: dict[Bucket, float] = await self._call(record_use, self._store, shared_s)
        except SparkLogError:
            for bucket, seconds in shared_s.items():
                self._unshared_s[bucket] = self._unshared_s.get(bucket, 0.0) + seconds
            raise
        now_s = clock.monotonic_s()
        for bucket, seconds in left_s.items():
            self._until_s[bucket] = now_s + seconds + self._unshared_s.get(bucket, 0.0)
