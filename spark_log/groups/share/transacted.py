"""Commits acknowledgements of a share group with a producer's transaction."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.errors import CommitFailedError, InvalidRecordStateError, UnknownTopicOrPartitionError
from spark_log.failpoints import failpoint
from spark_log.groups.share import rows, rules
from spark_log.groups.share.rules import Acknowledgement, Time
from spark_log.groups.share.service import Poll, run_polls
from spark_log.log.append.append_transaction import CommitHook
from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata.store_clock import StoreClock


@dataclass(frozen=True)
class ShareGroupMetadata:
    """The identity of a member of a share group."""

    group_id: str
    member_id: str


@dataclass(frozen=True)
class ShareAcknowledgements:
    """Acknowledgements that a share consumer has given up, so that a producer's transaction commits them."""

    group_id: str
    by_partition: Mapping[Key, Sequence[Acknowledgement]]


class TransactedAcknowledgements:
    """The acknowledgements in a producer's transaction. Their records stay locked until the transaction ends."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_group: dict[str, dict[Key, list[Acknowledgement]]] = {}
        """By group id, with the locks of the transaction."""

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def add(self, acknowledgements: ShareAcknowledgements, owner: str, lasts_ms: int) -> None:
        """Add acknowledgements, and lock their records for `owner`. Raises CommitFailedError if a lock has ended."""
        group_id = acknowledgements.group_id
        try:
            moved = self._lock_for(owner, group_id, acknowledgements.by_partition, lasts_ms)
        except (InvalidRecordStateError, UnknownTopicOrPartitionError) as error:
            raise CommitFailedError(f"acknowledgements of share group {group_id!r}: {error}") from error
        mine = self._by_group.setdefault(group_id, {})
        for key, acks in moved.items():
            mine[key] = [*mine.get(key, ()), *acks]

    def _lock_for(
        self, owner: str, group_id: str, acknowledgements: Mapping[Key, Sequence[Acknowledgement]], lasts_ms: int
    ) -> dict[Key, tuple[Acknowledgement, ...]]:
        """Lock acquired records for `owner` during `lasts_ms`. Return the acknowledgements with their new locks.
        Raises InvalidRecordStateError, without a change, if a lock has ended.
        """

        def body(connection: sa.Connection) -> dict[Key, tuple[Acknowledgement, ...]]:
            now = self._cluster.store.clock(connection)
            moved, changed = {}, []
            for key, found in _locked(connection, group_id, acknowledgements, now).items():
                time = Time(now.lease_ms, now.wall_ms)
                until_ms, log_start = now.lease_ms + lasts_ms, found.log.log_start_offset
                acks = acknowledgements[key]
                window, moved[key] = rules.move(found.row.window, acks, log_start, owner, until_ms, time)
                changed.append(replace(found.row, window=window))
            rows.save(connection, changed, now)
            return moved

        moved = self._cluster.store.transact(body, durable=False)
        failpoint("share.locks-moved")
        return moved

    def hook(self) -> CommitHook:
        """Return the append hook that applies the acknowledgements. It raises CommitFailedError if one of the locks has
        ended: then nothing of the append is committed.
        """

        def acknowledge(connection: sa.Connection, now: StoreClock) -> bool:
            for group_id in sorted(self._by_group):
                config = rows.configs_of(rows.ask_configs(connection, group_id), self._cluster.store.settings)
                limits, changed = rows.limits_of(config), []
                try:
                    for key, found in _locked(connection, group_id, self._by_group[group_id], now).items():
                        acks, time = self._by_group[group_id][key], Time(now.lease_ms, now.wall_ms)
                        change = rules.acknowledge(found.row.window, acks, found.log.log_start_offset, limits, time)
                        changed.append(replace(found.row, window=change.window))
                        rows.delay(connection, group_id, key, change.delayed)
                except (InvalidRecordStateError, UnknownTopicOrPartitionError) as error:
                    raise CommitFailedError(f"acknowledgements of share group {group_id!r}: {error}") from error
                rows.save(connection, changed, now)
            return True

        return acknowledge

    def release(self) -> None:
        """Release the records, so that other members may acquire them."""
        polls = []
        for group_id, by_key in self._by_group.items():
            owners = {ack.member for acks in by_key.values() for ack in acks}
            locks = {key: frozenset(ack.lock for ack in acks) for key, acks in by_key.items()}
            polls += [Poll(group_id, owner, release=locks) for owner in owners]
        if polls:
            run_polls(self._cluster.store, polls)


class _Locked(NamedTuple):
    row: rows.ShareRow
    log: rows.LogFacts


def _locked(connection: sa.Connection, group_id: str, keys: Iterable[Key], now: StoreClock) -> dict[Key, _Locked]:
    """Lock and return the rows of partitions. Raises UnknownTopicOrPartitionError if one is missing."""
    locked = {}
    for key in sorted(keys):
        row = rows.row_of(rows.ask_row(connection, group_id, key, lock=True), group_id, key, now)
        log = rows.log_of(rows.ask_log(connection, key))
        if row is None or log is None:
            raise UnknownTopicOrPartitionError(f"group {group_id!r} reads no such partition, or it was deleted")
        locked[key] = _Locked(row, log)
    return locked
