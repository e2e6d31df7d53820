"""Decides by the ACLs of the store what a client may do."""

import asyncio
import logging
import math
from dataclasses import dataclass
from functools import partial

from spark_log import clock
from spark_log.cluster.security.acl_rules import CLUSTER_NAME, OPERATIONS, Operation, ResourceType, Rights
from spark_log.cluster.security.acls import read_acls
from spark_log.errors import MetadataStoreUnavailableError, redact
from spark_log.gateway.access.sasl import Call
from spark_log.metadata.store import Store

logger = logging.getLogger(__name__)

_FRESH_S = 1.0
_DOWN_S = 2.0
_WAIT_S = 1.0
_KNOWN_TIMEOUT_MS = 1_000
"""How long a read is retried if older ACLs are known."""


@dataclass(frozen=True)
class Access:
    """The rights of one client. If `rights` is None, the gateway does not check rights."""

    rights: Rights | None = None
    principal: str = ""
    host: str = ""

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return self.rights is None or self.rights.allows(self.principal, self.host, operation, resource_type, name)

    def allows_on_cluster(self, operation: Operation) -> bool:
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def allows_any_topic(self, operation: Operation) -> bool:
        if self.rights is None:
            return True
        return self.rights.allows_any(self.principal, self.host, operation, ResourceType.TOPIC)

    def operations_on(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> frozenset[int]:
        """Return the operations that the client may perform on the resource, as numbers of AclOperation (KIP-430)."""
        return frozenset(int(each) for each in OPERATIONS[resource_type] if self.allows(each, resource_type, name))

    def operation_bits(self, resource_type: ResourceType, name: str) -> int:
        """Return `operations_on` as a bit field, for responses in which kafka-python does not encode the set."""
        return sum(1 << operation for operation in self.operations_on(resource_type, name))


EVERYTHING = Access()


class Authorizer:
    """Caches the ACLs of the store for a second. While the store is unavailable, the last ACLs apply.

    All requests wait for the same read. Once ACLs are known, they wait for `_WAIT_S` at most. After a read that took
    longer or found no store, requests use the known ACLs at once for `_DOWN_S`, unless `forget` is called.
    """

    def __init__(self, store: Store, call: Call, super_users: frozenset[str], everyone: bool) -> None:
        self._store, self._call = store, call
        self._super_users, self._everyone = super_users, everyone
        self._rights: Rights | None = None
        self._read_s = -_FRESH_S
        self._changes = 0
        self._reading: asyncio.Task[None] | None = None
        self._down_until_s = -math.inf

    def forget(self) -> None:
        """Let the next request read the ACLs again. A running read is repeated, as it may have seen the old ACLs."""
        self._read_s = -_FRESH_S
        self._changes += 1
        self._down_until_s = -math.inf

    async def access(self, principal: str, host: str) -> Access:
        """Return the rights of a client. Raises ConnectionAbortedError while the ACLs have never been read."""
        if clock.monotonic_s() - self._read_s >= _FRESH_S:
            await self._wait_for_read()
        if self._rights is None:
            raise ConnectionAbortedError("the ACLs cannot be read now")
        return Access(self._rights, principal, host)

    async def _wait_for_read(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(_log_error)
        reading, changes = self._reading, self._changes
        if self._rights is not None and clock.monotonic_s() < self._down_until_s:
            return
        await asyncio.wait([reading], timeout=None if self._rights is None else _WAIT_S)
        if reading.done():
            reading.result()
        elif changes == self._changes:
            self._down_until_s = clock.monotonic_s() + _DOWN_S

    async def _read(self) -> None:
        """Read the ACLs, and repeat this if `forget` was called meanwhile."""
        began_s, changes = 0.0, -1
        while changes != self._changes:
            began_s, changes = clock.monotonic_s(), self._changes
            timeout_ms = None if self._rights is None else _KNOWN_TIMEOUT_MS
            try:
                acls = await self._call(partial(read_acls, self._store, timeout_ms=timeout_ms))
            except MetadataStoreUnavailableError:
                if self._rights is not None and changes == self._changes:
                    self._read_s = clock.monotonic_s()
                    self._down_until_s = self._read_s + _DOWN_S
                return
            except Exception:  # the next request gets it
                self._down_until_s = -math.inf
                raise
            self._rights = Rights(acls, self._super_users, self._everyone)
        self._down_until_s, self._read_s = -math.inf, began_s


def _log_error(reading: asyncio.Task[None]) -> None:
    """Log the error of a read, because perhaps no request waits for the read any more."""
    if not reading.cancelled() and (error := reading.exception()) is not None:
        logger.warning("the ACLs cannot be read: %s", redact(str(error)))
