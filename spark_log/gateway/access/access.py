"""Decides on the rights of a client by the ACLs of the store."""

import asyncio
from dataclasses import dataclass

from spark_log import clock
from spark_log.cluster.security.acl_rules import CLUSTER_NAME, Operation, ResourceType, Rights
from spark_log.cluster.security.acls import read_acls
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.gateway.access.sasl import Call
from spark_log.metadata.store import Store

_FRESH_S = 1.0


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


EVERYTHING = Access()


class Authorizer:
    """Caches the ACLs of the store for a second. While the store is unavailable, the last ACLs apply."""

    def __init__(self, store: Store, call: Call, super_users: frozenset[str], everyone: bool) -> None:
        self._store, self._call = store, call
        self._super_users, self._everyone = super_users, everyone
        self._rights: Rights | None = None
        self._read_s = -_FRESH_S
        self._changes = 0
        self._reading = asyncio.Lock()

    def forget(self) -> None:
        """Read the ACLs again before the next request, although a read that has begun may not have ended."""
        self._read_s = -_FRESH_S
        self._changes += 1

    async def access(self, principal: str, host: str) -> Access:
        """Return the rights of a client. Raises ConnectionAbortedError while the ACLs have never been read."""
        if clock.monotonic_s() - self._read_s >= _FRESH_S:
            async with self._reading:
                if clock.monotonic_s() - self._read_s >= _FRESH_S:
                    await self._read()
        return Access(self._rights, principal, host)

    async def _read(self) -> None:
        began_s, changes = clock.monotonic_s(), self._changes
        try:
            acls = await self._call(lambda: read_acls(self._store))
        except MetadataStoreUnavailableError as error:
            if self._rights is None:
                raise ConnectionAbortedError("the ACLs cannot be read now") from error
        else:
            self._rights = Rights(acls, self._super_users, self._everyone)
        if changes == self._changes:
            self._read_s = began_s
