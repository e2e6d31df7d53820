"""Handles requests of members of the consumer protocol: read, decide (`rules`), write. Any process handles any request.

All functions block.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sqlalchemy as sa

from spark_log.cluster.names import is_legal
from spark_log.errors import (
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from spark_log.failpoints import failpoint
from spark_log.groups.assignors import SERVER_PREFERENCE, Assignor, choose_assignor
from spark_log.groups.classic.limits import BYTES_MAX, check_metadata
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.heartbeat import ConsumerAnswer, ConsumerHeartbeat
from spark_log.groups.consumer.reconciliation import refresh_targets
from spark_log.groups.consumer.rules import (
    JOINING,
    LEAVING,
    LEAVING_FOR_A_WHILE,
    EpochRequest,
    EpochState,
    Group,
    check_epoch,
    check_instance,
    check_names,
    check_released,
    check_size,
    decide_epoch_heartbeat,
    join_epoch,
    leave_for_a_while,
    notice_topics,
)
from spark_log.groups.consumer.stored_values import Pattern, Subscription, subscription_json
from spark_log.groups.consumer.topic_patterns import TopicMatches, match_topics
from spark_log.groups.conversion import check_upgrade, downgrade, upgrade
from spark_log.groups.identity import Identity
from spark_log.groups.share.group_ids import make_consumer_group, refuse_share_group
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock

_TRIES = 4
"""The maximum number of attempts at a heartbeat. A stale target is computed between two of them; the last attempt uses
it as it is."""
_TIMEOUT_MS = 5_000
"""The timeout of each transaction. The client sends its next heartbeat after about the same time."""
_SMALL_CHARACTERS = 4_096
"""The number of characters of a stored subscription up to which `_check_room` does not check the group."""


def consumer_heartbeat(store: Store, heartbeat: ConsumerHeartbeat, assignors: Mapping[str, Assignor]) -> ConsumerAnswer:
    """Handle one heartbeat of a member that does not leave, and return the answer. `assignors` are by name.

    Raises GroupIdNotFoundError, UnknownMemberIdError, FencedMemberEpochError, FencedInstanceIdError,
    UnreleasedInstanceIdError, GroupMaxSizeReachedError, InconsistentGroupProtocolError, IllegalArgumentError, or
    RebalanceInProgressError if a classic member joins a group that has become classic.
    """
    check_names(heartbeat.names or ())
    if heartbeat.epoch == JOINING:
        store.read(lambda connection: _refuse_share_group(connection, heartbeat.me.group_id))
        check_upgrade(store, heartbeat.me.group_id)
    trusted = True
    for attempt in range(_TRIES):
        last = attempt == _TRIES - 1
        result = _run(store, heartbeat, trusted, last)
        if isinstance(result, _Decided):
            break
        store.changes.announce()
        trusted = result.trusted
        failpoint("group.changed")
        refresh_targets(store, heartbeat.me.group_id, assignors)
    assert isinstance(result, _Decided)
    if result.announce:
        store.changes.announce()
        failpoint("group.assigned")
    failpoint("gateway.consumer-heartbeat-decided")
    return result.answer


def leave_consumer(store: Store, heartbeat: ConsumerHeartbeat, assignors: Mapping[str, Assignor]) -> ConsumerAnswer:
    """Handle the heartbeat with which a member leaves, and return the answer. With the epoch LEAVING the member is
    removed; with LEAVING_FOR_A_WHILE a static member keeps its partitions until its session ends.

    Raises GroupIdNotFoundError, UnknownMemberIdError, FencedInstanceIdError or InconsistentGroupProtocolError.
    """

    def body(connection: sa.Connection) -> bool:
        me = heartbeat.me
        group = _lock_group(connection, me.group_id)
        now = store.clock(connection)
        row = rows.read_member(connection, me.group_id, me.member_id)
        holder = rows.find_instance(connection, me.group_id, me.instance_id)
        check_instance(me.group_id, me.member_id, me.instance_id, None if holder is None else holder.member_id)
        if row is None or row.protocol != heartbeat.protocol or not row.live(now):
            raise UnknownMemberIdError(f"Member {me.member_id} is not a member of group {me.group_id}.")
        if heartbeat.epoch == LEAVING:
            remaining = rows.remove_members(connection, now, me.group_id, group.group, [row.member_id])
            return remaining.stale and not downgrade(store, connection, me.group_id, group.group, now)
        member, epochs = leave_for_a_while(row.member, row.epochs)
        until_ms = now.lease_ms + row.session_timeout_ms
        left = replace(row, member=member, epochs=epochs, until_ms=until_ms, clock_epoch=now.clock_epoch)
        rows.save_member(connection, me.group_id, left)
        return False

    if store.transact(body, timeout_ms=_TIMEOUT_MS, announce=True):
        failpoint("group.changed")
        refresh_targets(store, heartbeat.me.group_id, assignors)
    return ConsumerAnswer(heartbeat.me.member_id, heartbeat.epoch or LEAVING)


@dataclass(frozen=True)
class _Decided:
    """An answer. With `announce`, partitions were assigned or revoked, and waiting members must be notified."""

    answer: ConsumerAnswer
    announce: bool


@dataclass(frozen=True)
class _TargetIsStale:
    """The target must be computed first. With `trusted`, the member's last request came from the same connection."""

    trusted: bool


class _NotMatchedError(Exception):
    """The topics that a regular expression matches must be found first."""

    def __init__(self, regex: str) -> None:
        super().__init__(regex)
        self.regex = regex


def _run(store: Store, heartbeat: ConsumerHeartbeat, trusted: bool, last: bool) -> _Decided | _TargetIsStale:
    """Run a transaction that decides a heartbeat, and match the topics before it. If the heartbeat has no regular
    expression, the transaction finds whether the stored subscription has one to match.
    """
    regex = heartbeat.regex
    while True:
        matches = match_topics(store, regex, heartbeat.may_describe, _TIMEOUT_MS) if regex else None
        try:
            return store.transact(
                lambda connection, m=matches: _heartbeat(store, connection, heartbeat, m, trusted, last),  # type: ignore[misc]
                timeout_ms=_TIMEOUT_MS,
            )
        except _NotMatchedError as error:
            regex = error.regex


def _heartbeat(
    store: Store,
    connection: sa.Connection,
    heartbeat: ConsumerHeartbeat,
    matches: TopicMatches | None,
    trusted: bool,
    last: bool,
) -> _Decided | _TargetIsStale:
    """Decide a heartbeat; in the `last` attempt even with a stale target. With `trusted`, the earlier attempts found
    that the member's previous heartbeat came from the same connection. Raises _NotMatchedError if `matches` is not of
    the member's regular expression.
    """
    me = heartbeat.me
    if heartbeat.epoch == JOINING:
        rows.lock_or_make_group(connection, me.group_id, store.clock(connection))
    before = _lock_group(connection, me.group_id)
    now = store.clock(connection)
    if heartbeat.epoch == JOINING:
        if before.type == rows.CLASSIC and heartbeat.protocol == rows.CLASSIC:
            raise RebalanceInProgressError(f"group {me.group_id!r} has become a classic group")
        make_consumer_group(connection, me.group_id, before)
        before = upgrade(store, connection, me.group_id, before, now)
    dead = rows.dead_members(connection, me.group_id, now)
    group = rows.remove_members(connection, now, me.group_id, before.group, dead)
    row = stored = _find(store, connection, heartbeat)
    if heartbeat.protocols and (row is None or row.protocols != heartbeat.protocols):
        size = sum(len(metadata) for _, metadata in heartbeat.protocols)
        check_metadata(me.group_id, size + rows.classic_bytes(connection, me.group_id, me.member_id))
    if row is None:
        row, group = _join(store, connection, heartbeat, matches, group, now)
    else:
        check_epoch(row.member, row.epochs, _epoch(heartbeat, row), heartbeat.owned)
        trusted = trusted and row.epochs.connection_id == heartbeat.connection_id
        topics, assignors = row.subscription.topics, row.subscription.assignors
        row = _with_subscription(connection, row, heartbeat, matches)
        kept = row.subscription.topics & topics  # another subscription is a change by itself
        group = notice_topics(group, before.topics, rows.topic_facts(connection, kept), kept)
        changed = row.subscription.topics != topics or (
            row.subscription.assignors != assignors and _votes_for_another_assignor(connection, before, row, me)
        )
        if changed and group.generation == before.group.generation:
            group = group.changed()
    if group != before.group or before.empty_since_ms is not None:  # one that subscribes to nothing changes no group
        rows.save_group(connection, me.group_id, group, empty_since_ms=None)
    if group.stale and not last:
        if row != stored:
            rows.save_member(connection, me.group_id, row)
        return _TargetIsStale(trusted)
    return _decide(connection, heartbeat, row, stored, replace(before, group=group), now, trusted)


def _votes_for_another_assignor(
    connection: sa.Connection, group: rows.GroupRow, row: rows.MemberRow, me: Identity
) -> bool:
    """Return whether the votes of all members, with the new one of `row`, choose another assignor than the group's."""
    others = [each for each in rows.read_members(connection, me.group_id) if each.member_id != row.member_id]
    return choose_assignor([row.subscription.assignors, *(each.subscription.assignors for each in others)]) != (
        group.assignor
    )


def _decide(
    connection: sa.Connection, heartbeat: ConsumerHeartbeat, row: rows.MemberRow, stored: rows.MemberRow | None,
    group_row: rows.GroupRow, now: StoreClock, trusted: bool,
) -> _Decided:  # fmt: skip
    """Decide the heartbeat and write the member. `stored` is the member before it, None if it joins now."""
    group_id = heartbeat.me.group_id
    member = row.member
    missing = member.target - member.assigned
    taken = rows.assigned_to_others(connection, group_id, row.member_id, missing) if missing else {}
    request = EpochRequest(_epoch(heartbeat, row), heartbeat.owned, heartbeat.connection_id, trusted)
    decided = decide_epoch_heartbeat(group_row.group, member, row.epochs, request, taken, now.lease_ms)
    revoked, newly = member.assigned - decided.member.assigned, decided.member.assigned - member.assigned
    rows.revoke_partitions(connection, group_id, row.member_id, revoked)
    rows.assign_partitions(connection, group_id, row.member_id, newly)
    topics = {p.topic for p in decided.state.current}
    epochs = replace(decided.state, topic_ids=frozenset(group_row.topics[name].topic_id for name in topics))
    after = replace(row, member=decided.member, epochs=epochs)
    # a heartbeat that changes nothing writes nothing, and so wakes no other member
    if after != stored or epochs.renewal_due_ms(row.until_ms, row.session_timeout_ms) <= now.lease_ms:
        until_ms = epochs.until_ms(now.lease_ms, row.session_timeout_ms)
        rows.save_member(connection, group_id, replace(after, until_ms=until_ms, clock_epoch=now.clock_epoch))
    changed = (epochs.current, epochs.topic_ids) != (row.epochs.current, row.epochs.topic_ids)
    answer = ConsumerAnswer(
        row.member_id,
        decided.member.generation,
        epochs.current if heartbeat.full or changed or not trusted else None,
        group_row.assignor,
        complete=not group_row.group.stale and decided.member.settled,
        repeat=decided.repeat or decided.member.generation == JOINING,
    )
    return _Decided(answer, announce=bool(revoked or newly))


def _epoch(heartbeat: ConsumerHeartbeat, row: rows.MemberRow) -> int:
    return row.member.generation if heartbeat.epoch is None else heartbeat.epoch


def _find(store: Store, connection: sa.Connection, heartbeat: ConsumerHeartbeat) -> rows.MemberRow | None:
    """Return the member, or None if it joins now. Raises the errors of `consumer_heartbeat`."""
    me = heartbeat.me
    row = rows.read_member(connection, me.group_id, me.member_id)
    if row is None and heartbeat.epoch == JOINING:
        check_size(rows.count_members(connection, me.group_id), store.settings.group_consumer_max_size)
    holder = rows.find_instance(connection, me.group_id, me.instance_id)
    if heartbeat.epoch == JOINING and holder is not None and me.instance_id is not None:
        returns = holder.member_id == me.member_id and holder.member.generation == LEAVING_FOR_A_WHILE
        if returns or (row is None and (heartbeat.replaces or heartbeat.protocol == rows.CONSUMER)):
            if holder.protocol == rows.CONSUMER and not heartbeat.replaces:
                check_released(me.member_id, me.instance_id, holder.member_id, holder.member.generation)
            return None
    elif heartbeat.epoch == JOINING and row is None:
        return None
    check_instance(me.group_id, me.member_id, me.instance_id, None if holder is None else holder.member_id)
    if row is None or row.protocol != heartbeat.protocol:
        raise UnknownMemberIdError(f"Member {me.member_id} is not a member of group {me.group_id}.")
    return _with_assigned(connection, me.group_id, row)


def _with_assigned(connection: sa.Connection, group_id: str, row: rows.MemberRow) -> rows.MemberRow:
    return replace(row, member=replace(row.member, assigned=rows.assigned_to(connection, group_id, row.member_id)))


def _join(
    store: Store,
    connection: sa.Connection,
    heartbeat: ConsumerHeartbeat,
    matches: TopicMatches | None,
    group: Group,
    now: StoreClock,
) -> tuple[rows.MemberRow, Group]:
    """Write a new member. Return it, and the group after the join. Raises GroupMaxSizeReachedError, or
    InconsistentGroupProtocolError if the members would have no assignor in common.
    """
    me = heartbeat.me
    subscription = _subscription(heartbeat.names or frozenset(), heartbeat.regex or "", _preference(heartbeat), matches)
    _check_room(connection, me, subscription)
    choose_assignor(
        [subscription.assignors, *(other.assignors for other in rows.read_subscriptions(connection, me.group_id))]
    )
    old = rows.find_instance(connection, me.group_id, me.instance_id)
    epochs = EpochState(heartbeat.connection_id, heartbeat.rebalance_timeout_ms or 0, rack=heartbeat.rack)
    same_assignors = old is None or subscription.assignors == old.subscription.assignors
    group, member = join_epoch(
        group,
        subscription.topics,
        None if old is None else old.member,
        same_assignors=same_assignors,
        idle=not (subscription.topics or heartbeat.regex or heartbeat.assignor or heartbeat.assignors),
    )
    session_ms = me.session_timeout_ms or store.settings.group_consumer_session_timeout_ms
    row = rows.MemberRow(
        me.member_id, me.instance_id, me.client_id, me.host, subscription, member, session_ms,
        now.lease_ms + session_ms, now.clock_epoch, epochs, heartbeat.protocol, heartbeat.protocols,
    )  # fmt: skip
    if old is None:
        rows.insert_member(connection, me.group_id, row)
    else:
        rows.replace_member(connection, me.group_id, old.member_id, row)
    row = _with_assigned(connection, me.group_id, row)
    if old is not None and old.member.generation != LEAVING_FOR_A_WHILE:  # it may read until its next heartbeat
        row = replace(row, epochs=replace(epochs, current=row.member.assigned))
    return row, group


def _with_subscription(
    connection: sa.Connection, row: rows.MemberRow, heartbeat: ConsumerHeartbeat, matches: TopicMatches | None
) -> rows.MemberRow:
    """Return the row of a member with the subscription of its heartbeat."""
    epochs, subscription = row.epochs, row.subscription
    if heartbeat.rebalance_timeout_ms is not None:
        epochs = replace(epochs, rebalance_timeout_ms=heartbeat.rebalance_timeout_ms)
    if heartbeat.rack is not None:
        epochs = replace(epochs, rack=heartbeat.rack)
    protocols = heartbeat.protocols or row.protocols
    names = subscription.topics if subscription.pattern is None else subscription.pattern.names
    regex = "" if subscription.pattern is None else subscription.pattern.regex
    assignors = (
        subscription.assignors if heartbeat.assignor is None and not heartbeat.assignors else _preference(heartbeat)
    )
    again = subscription.pattern is not None and subscription.pattern.matched != rows.all_topics(connection)
    if heartbeat.names is not None or heartbeat.regex is not None or assignors != subscription.assignors or again:
        new_names = names if heartbeat.names is None else heartbeat.names
        new_regex = regex if heartbeat.regex is None else heartbeat.regex
        subscription = _subscription(new_names, new_regex, assignors, matches)
        _check_room(connection, heartbeat.me, subscription)
    member = replace(row.member, topics=subscription.topics)
    return replace(row, epochs=epochs, subscription=subscription, member=member, protocols=protocols)


def _subscription(
    names: frozenset[str], regex: str, assignors: tuple[str, ...], matches: TopicMatches | None
) -> Subscription:
    legal = frozenset(name for name in names if is_legal(name))
    if not regex:
        return Subscription(legal, assignors)
    if matches is None or matches.regex != regex:
        raise _NotMatchedError(regex)
    # topics that were created or deleted since then are noticed by the next heartbeat
    return Subscription(legal | matches.names, assignors, Pattern(regex, legal, matches.topic_set))


def _check_room(connection: sa.Connection, me: Identity, subscription: Subscription) -> None:
    """Raise GroupMaxSizeReachedError if this subscription and the distinct ones of the other members have more than
    BYTES_MAX characters as they are stored. All of them are read for each change of the group.
    """
    own = len(subscription_json(subscription))
    if own > _SMALL_CHARACTERS:
        size = own + rows.subscription_characters(connection, me.group_id, me.member_id)
        if size > BYTES_MAX:
            raise GroupMaxSizeReachedError(f"group {me.group_id!r}: the subscriptions would have {size} characters")


def _preference(heartbeat: ConsumerHeartbeat) -> tuple[str, ...]:
    if heartbeat.assignors:
        return heartbeat.assignors
    return (
        SERVER_PREFERENCE
        if heartbeat.assignor is None
        else tuple(dict.fromkeys((heartbeat.assignor, *SERVER_PREFERENCE[1:])))
    )


def _lock_group(connection: sa.Connection, group_id: str) -> rows.GroupRow:
    group = rows.read_group(connection, group_id, lock=True)
    if group is None:
        raise GroupIdNotFoundError(f"Group {group_id} not found.")
    refuse_share_group(connection, group_id, group)
    return group


def _refuse_share_group(connection: sa.Connection, group_id: str) -> None:
    """Refuse a share group in a read, so that a client that repeats a refused request takes no lock."""
    refuse_share_group(connection, group_id, rows.read_group(connection, group_id))
