"""Stores access control lists."""

import hashlib
from collections.abc import Collection, Sequence

import sqlalchemy as sa

from spark_log.cluster.security.acl_rules import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    fault_of,
)
from spark_log.config.values import can_be_stored
from spark_log.errors import IllegalArgumentError
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_if_missing
from spark_log.metadata.sql_columns import ACL
from spark_log.metadata.store import Store

_NAME_LENGTH_MAX, _PRINCIPAL_LENGTH_MAX = 249, 1024


def check_acl(acl: Acl) -> Acl:
    """Return the ACL. Raises IllegalArgumentError with the reason if it cannot be created."""
    fault = fault_of(acl)
    if fault is None:
        for text, length in (
            (acl.resource_name, _NAME_LENGTH_MAX), (acl.host, _NAME_LENGTH_MAX), (acl.principal, _PRINCIPAL_LENGTH_MAX),
        ):  # fmt: skip
            if len(text) > length or not can_be_stored(text):
                fault = f"{text[:50]!r} is longer than {length} characters, or cannot be stored"
    if fault is not None:
        raise IllegalArgumentError(f"ACL: {fault}")
    return acl


def add_acls(store: Store, acls: Collection[Acl]) -> None:
    """Add ACLs, all or none. Those that exist already do not change. Raises IllegalArgumentError (`check_acl`)."""
    rows = [{"acl_id": _id_of(acl), **_columns(acl)} for acl in map(check_acl, acls)]

    def body(connection: sa.Connection) -> None:
        for row in sorted(rows, key=lambda each: str(each["acl_id"])):
            insert_if_missing(connection, t.acl, row)

    store.transact(body)


def remove_acls(store: Store, filters: Sequence[AclFilter]) -> list[list[Acl]]:
    """Remove the ACLs that match one of the filters. Returns for each filter, in order, the ACLs that it matched."""

    def body(connection: sa.Connection) -> list[list[Acl]]:
        known = _read(connection)
        found = [[acl for acl in known if each.matches(acl)] for each in filters]
        for acl_id in sorted({_id_of(acl) for acls in found for acl in acls}):
            connection.execute(t.acl.delete().where(ACL.acl_id == acl_id))
        return found

    return store.transact(body)


def read_acls(store: Store, timeout_ms: int | None = None) -> list[Acl]:
    """Return all ACLs, in a fixed order. `timeout_ms` is that of `Store.read`."""
    return store.read(_read, timeout_ms=timeout_ms)


def _read(connection: sa.Connection) -> list[Acl]:
    query = sa.select(t.acl).order_by(
        ACL.resource_type, ACL.resource_name, ACL.pattern_type, ACL.principal, ACL.operation, ACL.acl_id
    )
    return [
        Acl(
            ResourceType(row.resource_type), row.resource_name, PatternType(row.pattern_type), row.principal, row.host,
            Operation(row.operation), Permission(row.permission),
        )
        for row in connection.execute(query)
    ]  # fmt: skip


def _id_of(acl: Acl) -> str:
    return hashlib.sha256("\0".join(map(str, _columns(acl).values())).encode()).hexdigest()


def _columns(acl: Acl) -> dict[str, int | str]:
    """Return the fields of the ACL in their order, with Kafka's numbers."""
    return {name: value if isinstance(value, str) else int(value) for name, value in vars(acl).items()}
