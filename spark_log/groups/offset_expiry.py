"""Deletes committed offsets that have expired by offsets.retention.minutes, and groups without offsets (KIP-211)."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.lease import Fence, unfenced
from spark_log.config import ClusterSettings
from spark_log.errors import NonEmptyGroupError
from spark_log.errors.first_failure import FirstFailure
from spark_log.groups.classic.group import State
from spark_log.groups.classic.limits import may_be_decoded
from spark_log.groups.classic.rows import delete_classic, read_classic
from spark_log.groups.classic.rules import advance
from spark_log.groups.committed_offsets import KEPT, has_commits, has_pending_commits
from spark_log.groups.consumer import rows
from spark_log.groups.consumer_messages import subscription_of
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import in_list
from spark_log.metadata.sql_columns import CONSUMER_GROUP, GROUP_OFFSET, TOPIC, TRANSACTION_OFFSET
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock

_PENDING = sa.exists().where(
    TRANSACTION_OFFSET.group_id == GROUP_OFFSET.group_id,
    TRANSACTION_OFFSET.topic_id == GROUP_OFFSET.topic_id,
    TRANSACTION_OFFSET.partition == GROUP_OFFSET.partition,
)
"""An open transaction may commit another offset of the partition."""
_WITHOUT_OFFSETS = ~has_commits(CONSUMER_GROUP.group_id) & ~has_pending_commits(CONSUMER_GROUP.group_id)
_ROWS_A_TURN = 1_000
"""The rows after which a transaction takes no more groups. All appends wait for it on SQLite."""


def expire_offsets(store: Store, settings: ClusterSettings | None = None, fence: Fence = unfenced) -> int:
    """Delete committed offsets that have expired, and the groups that then have no offsets. Return the number of
    deleted offsets.

    An offset of a group without members expires offsets.retention.minutes after its commit, or after the group became
    empty if that was later. A group is deleted only if it has been empty for as long. An offset of a group with members
    expires the same time after its commit, but only if no member subscribes to its topic. No offset expires while an
    open transaction may commit another one, or if its metadata is KEPT. The first error of a group with members is
    raised at the end.
    """
    retention_ms = (settings or store.settings).offsets_retention_ms
    due = store.read(lambda connection: _due_groups(connection, store.clock(connection), retention_ms))
    gone = 0
    for group_ids in _portions(due):
        gone += store.transact(partial(_expire_of_empty, store, retention_ms, group_ids), fence=fence)
    with FirstFailure() as failure:
        for group_id in store.read(lambda connection: _with_members(connection, store.clock(connection), retention_ms)):
            with failure.attempt():
                gone += _expire_unsubscribed(store, group_id, retention_ms, fence)
    return gone


def _due_groups(connection: sa.Connection, now: StoreClock, retention_ms: int) -> list[tuple[str, int]]:
    """Return the groups without members that have something to delete, with the numbers of their expired offsets."""
    before_ms = now.wall_ms - retention_ms
    expired = (GROUP_OFFSET.group_id == CONSUMER_GROUP.group_id) & _old(before_ms)
    count = sa.select(sa.func.count()).select_from(t.group_offset).where(expired).scalar_subquery()
    due = sa.exists().where(expired) | _WITHOUT_OFFSETS
    query = sa.select(CONSUMER_GROUP.group_id, count).where(_empty_since(before_ms), due)
    return [(group_id, count) for group_id, count in connection.execute(query.order_by(CONSUMER_GROUP.group_id))]


def _portions(groups: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    """Divide groups with their numbers of offsets into portions of about `_ROWS_A_TURN` rows."""
    portion: list[str] = []
    row_count = 0
    for group_id, offset_count in groups:
        portion.append(group_id)
        row_count += 1 + offset_count
        if row_count >= _ROWS_A_TURN:
            yield portion
            portion, row_count = [], 0
    if portion:
        yield portion


def _expire_of_empty(store: Store, retention_ms: int, group_ids: Sequence[str], connection: sa.Connection) -> int:
    """For the groups that are still empty, delete the expired offsets, and the groups that then have none. Return the
    number of deleted offsets.
    """
    before_ms = store.clock(connection).wall_ms - retention_ms
    empty = sa.select(CONSUMER_GROUP.group_id).where(
        in_list(CONSUMER_GROUP.group_id, group_ids), _empty_since(before_ms)
    )
    locked = connection.execute(empty.order_by(CONSUMER_GROUP.group_id).with_for_update()).scalars().all()
    # separate statements: on PostgreSQL they see what others committed while this transaction waited for the locks
    old = in_list(GROUP_OFFSET.group_id, locked) & _old(before_ms)
    gone = connection.execute(t.group_offset.delete().where(old)).rowcount
    over = sa.select(CONSUMER_GROUP.group_id).where(in_list(CONSUMER_GROUP.group_id, locked), _WITHOUT_OFFSETS)
    group_ids = connection.execute(over).scalars().all()
    delete_classic(connection, group_ids)
    for table in (t.group_offset, t.consumer_group):  # the offsets are of topics that were deleted during the commit
        connection.execute(table.delete().where(in_list(table.c.group_id, group_ids)))
    return gone


def _expire_unsubscribed(store: Store, group_id: str, retention_ms: int, fence: Fence) -> int:
    """Delete the expired offsets of topics to which no member of the group subscribes, and return their number."""
    if not store.read(lambda found: _unsubscribed_by(found, group_id, store.clock(found), retention_ms)):
        return 0

    def expire(connection: sa.Connection) -> int:
        rows.read_group(connection, group_id, lock=True)
        now = store.clock(connection)
        topic_ids = _unsubscribed_by(connection, group_id, now, retention_ms)
        where = (GROUP_OFFSET.group_id == group_id) & GROUP_OFFSET.topic_id.in_(topic_ids)
        return connection.execute(t.group_offset.delete().where(where, _old(now.wall_ms - retention_ms))).rowcount

    return store.transact(expire, fence=fence)


def count_expired_offsets(store: Store, settings: ClusterSettings) -> int:
    """Return the number of offsets that `expire_offsets` would delete now."""

    def count(connection: sa.Connection) -> int:
        now = store.clock(connection)
        old = _old(now.wall_ms - settings.offsets_retention_ms)
        query = sa.select(sa.func.count()).select_from(t.group_offset).where(old)
        of_empty = _empty_since(now.wall_ms - settings.offsets_retention_ms)
        expired_count = connection.execute(
            query.join(t.consumer_group, CONSUMER_GROUP.group_id == GROUP_OFFSET.group_id).where(of_empty)
        ).scalar_one()
        for group_id in _with_members(connection, now, settings.offsets_retention_ms):
            topic_ids = _unsubscribed_by(connection, group_id, now, settings.offsets_retention_ms)
            where = (GROUP_OFFSET.group_id == group_id) & GROUP_OFFSET.topic_id.in_(topic_ids)
            expired_count += connection.execute(query.where(where)).scalar_one()
        return int(expired_count)

    return store.read(count)


def subscribed_topics(connection: sa.Connection, group_id: str, now: StoreClock) -> frozenset[str]:
    """Return the topics to which live members of the group subscribe.

    Raises NonEmptyGroupError if a member of a classic group is not a consumer, or the members have too much metadata to
    decode.
    """
    live = [member for member in rows.read_members(connection, group_id) if member.live(now)]
    topics = frozenset(topic for member in live for topic in member.subscription.topics)
    group = read_classic(connection, group_id, now)
    if group is None:
        return topics
    is_small = may_be_decoded(group)
    for member in advance(group, now.lease_ms).joined:
        message = subscription_of(group, member) if is_small else None
        if message is None:
            raise NonEmptyGroupError(f"group {group_id!r} has live members that assign by their own protocol")
        topics |= message.topics
    return topics


def _with_members(connection: sa.Connection, now: StoreClock, retention_ms: int) -> list[str]:
    """Return the groups with members that have expired offsets, also of topics to which they subscribe."""
    groups = (
        sa.select(GROUP_OFFSET.group_id)
        .distinct()
        .join(t.consumer_group, CONSUMER_GROUP.group_id == GROUP_OFFSET.group_id)
        .where(CONSUMER_GROUP.empty_since_ms.is_(None), _old(now.wall_ms - retention_ms))
    )
    return list(connection.execute(groups.order_by(GROUP_OFFSET.group_id)).scalars())


def _unsubscribed_by(connection: sa.Connection, group_id: str, now: StoreClock, retention_ms: int) -> frozenset[int]:
    """Return the ids of the topics with expired offsets to which no member of the group subscribes. A group that
    rebalances, or whose subscriptions are unknown, has none.
    """
    classic = read_classic(connection, group_id, now)
    if classic is not None and classic.joined and advance(classic, now.lease_ms).state is not State.STABLE:
        return frozenset()
    try:
        subscribed = subscribed_topics(connection, group_id, now)
    except NonEmptyGroupError:
        return frozenset()
    old = (
        sa.select(TOPIC.topic_id, TOPIC.name)
        .distinct()
        .join(t.group_offset, GROUP_OFFSET.topic_id == TOPIC.topic_id)
        .where(GROUP_OFFSET.group_id == group_id, _old(now.wall_ms - retention_ms))
    )
    if not subscribed:
        return frozenset()  # the sessions of all members have ended: the group becomes empty
    return frozenset(topic_id for topic_id, name in connection.execute(old) if name not in subscribed)


def _empty_since(before_ms: int) -> sa.ColumnElement[bool]:
    """Return the condition of groups without members. Share groups do not expire."""
    return (CONSUMER_GROUP.empty_since_ms <= before_ms) & (CONSUMER_GROUP.type != rows.SHARE)


def _old(before_ms: int) -> sa.ColumnElement[bool]:
    return (GROUP_OFFSET.committed_ms <= before_ms) & (GROUP_OFFSET.commit_metadata != KEPT.encode()) & ~_PENDING
