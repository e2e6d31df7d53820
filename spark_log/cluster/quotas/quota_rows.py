"""Stores the quotas of a cluster and their use."""

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.quotas.rules import Bucket, Entity, Quotas, used_until_s
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_if_missing, insert_or_replace
from spark_log.metadata.sql_columns import CLIENT_QUOTA, QUOTA_USAGE
from spark_log.metadata.store import Store

_US = 1_000_000
_KEPT_AFTER_USE_US = 60 * _US


def read_quotas(store: Store) -> Quotas:
    """Return all quotas of the cluster."""
    found: dict[Entity, dict[str, float]] = {}
    query = sa.select(CLIENT_QUOTA.entity, CLIENT_QUOTA.config, CLIENT_QUOTA.value).order_by(CLIENT_QUOTA.entity)
    for text, config, value in store.read(lambda connection: connection.execute(query).all()):
        found.setdefault(_entity(text), {})[config] = value
    return found


def write_quotas(store: Store, changes: Iterable[tuple[Entity, Mapping[str, float | None]]]) -> None:
    """Set the values of entities in one transaction; None deletes a value. The caller has checked the values."""
    texts = [(_text(entity), values) for entity, values in changes]

    def body(connection: sa.Connection) -> None:
        for entity, values in texts:
            for config, value in values.items():
                here = (CLIENT_QUOTA.entity == entity) & (CLIENT_QUOTA.config == config)
                if value is None:
                    connection.execute(t.client_quota.delete().where(here))
                    continue
                row = {"entity": entity, "config": config, "value": value}
                insert_or_replace(connection, t.client_quota, [row])

    store.transact(body)


def record_use(store: Store, use: Mapping[Bucket, float]) -> dict[Bucket, float]:
    """Add the use of this process to that of all gateways. `use` is in seconds at the quota's rate.

    Returns for each bucket the time in seconds after which its use is paid for.
    """
    keys = {_key(bucket): bucket for bucket in sorted(use, key=_key)}  # gateways insert and lock in this order
    query = sa.select(QUOTA_USAGE.bucket, QUOTA_USAGE.used_until_us, QUOTA_USAGE.clock_epoch)
    query = query.where(QUOTA_USAGE.bucket.in_(list(keys))).order_by(QUOTA_USAGE.bucket)

    def body(connection: sa.Connection) -> dict[Bucket, float]:
        now = store.clock(connection)
        now_us = now.lease_ms * 1000
        new = {"used_until_us": now_us, "clock_epoch": now.clock_epoch}
        locked: Sequence[sa.Row[Any, Any, Any]] = ()
        while len(locked) < len(keys):  # `delete_old_use` may delete a row again
            known = {row.bucket for row in connection.execute(query)}
            if missing := [{"bucket": key, **new} for key in keys if key not in known]:
                insert_if_missing(connection, t.quota_usage, missing)
            locked = connection.execute(query.with_for_update()).all()
        left: dict[Bucket, float] = {}
        rows = []
        for key, before_us, clock_epoch in locked:
            bucket = keys[key]
            before_s = (before_us - now_us) / _US if clock_epoch == now.clock_epoch else 0.0
            left[bucket] = used_until_s(before_s, 0.0, use[bucket], rate=1.0)
            until_us = now_us + round(left[bucket] * _US)
            rows.append({"bucket": key, "used_until_us": until_us, "clock_epoch": now.clock_epoch})
        insert_or_replace(connection, t.quota_usage, rows)
        return left

    return store.transact(body)


def delete_old_use(store: Store) -> None:
    """Delete the rows of buckets whose use was paid for more than a minute ago."""

    def body(connection: sa.Connection) -> None:
        now = store.clock(connection)
        old = QUOTA_USAGE.used_until_us < now.lease_ms * 1000 - _KEPT_AFTER_USE_US
        connection.execute(t.quota_usage.delete().where(old | (QUOTA_USAGE.clock_epoch != now.clock_epoch)))

    store.transact(body)


def _text(entity: Entity) -> str:
    return json.dumps(dict(entity), sort_keys=True)


def _entity(text: str) -> Entity:
    return tuple(sorted(json.loads(text).items()))


def _key(bucket: Bucket) -> str:
    text = json.dumps([bucket.config, bucket.names, bucket.rate])
    return blake2b(text.encode(), digest_size=24).hexdigest()
