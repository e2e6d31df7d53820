"""Handles requests of members of classic groups: reads, decides (`rules`), writes. Any process handles any request.

A request that changes nothing only reads. All functions block, and raise the errors of `rules`.
"""

import contextlib
from collections.abc import Callable, Collection
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.cluster.lease import Fence, unfenced
from spark_log.errors import FencedInstanceIdError, InconsistentGroupProtocolError, UnknownMemberIdError
from spark_log.failpoints import failpoint
from spark_log.groups import batch_rows
from spark_log.groups.batch_rows import Key, of_groups, of_members
from spark_log.groups.classic.group import ClassicGroup, Joining, State
from spark_log.groups.classic.limits import check_join, check_request
from spark_log.groups.classic.rows import read_classic, read_part, save_classic
from spark_log.groups.classic.rules import advance, check_commit, join, leave, next_change_ms
from spark_log.groups.consumer import rows
from spark_log.groups.share.group_ids import refuse_classic_member
from spark_log.metadata.prepared import one_message
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock

Step = Callable[[ClassicGroup, int], ClassicGroup]
"""A function that takes a group and a time of the store's lease clock, and returns the group after a request."""


class Seen(NamedTuple):
    """A group after a request. Without a request, it stays the same for `wait_ms`, or forever if that is None."""

    group: ClassicGroup
    wait_ms: int | None


class Mark(NamedTuple):
    """The facts of a group for whose change requests wait. `member_ids` are the waiting members that still exist.
    `wait_ms` is as in `Seen`.
    """

    state: State
    generation: int
    member_ids: set[str]
    wait_ms: int | None


def change_own(store: Store, group_id: str, member_id: str, step: Step) -> Seen:
    """Apply a `step` that at most renews the session of one member. The rest is as in `change`.

    Other members are not read, because their metadata may be large, and the result has only this member. They are read
    if time has changed the group, or the step does not accept the member.
    """

    def decide(connection: sa.Connection) -> tuple[ClassicGroup, Seen, StoreClock] | None:
        """Return the group with this member, before and after; None if the other members must be read."""
        now = store.clock(connection)
        part = read_part(connection, group_id, member_id, now)
        if part is None or (part.until_ms is not None and part.until_ms <= now.lease_ms):
            return None
        try:
            after = step(part.group, now.lease_ms)
        except (UnknownMemberIdError, FencedInstanceIdError):
            return None  # the other members decide which of the two errors is raised
        wait_ms = None if part.until_ms is None else part.until_ms - now.lease_ms
        return part.group, Seen(after, wait_ms), now

    def renew(connection: sa.Connection) -> Seen | None:
        rows.read_group(connection, group_id, lock=True)
        decided = decide(connection)
        if decided is None:
            return None
        before, seen, now = decided
        save_classic(connection, before, seen.group, now)
        return seen

    decided = store.read(decide)
    seen: Seen | None = None
    if decided is not None:
        before, seen, _ = decided
        if seen.group != before:
            seen = store.transact(renew)
    return seen or change(store, group_id, step)


def marks_of(store: Store, members: Collection[Key]) -> dict[str, Mark]:
    """Return the facts of the groups for which these members wait, by group id, in one read. Groups that do not exist,
    or whose state is damaged, are left out.
    """

    def read(connection: sa.Connection) -> dict[str, Mark]:
        group_ids = {group_id for group_id, _ in members}
        with one_message(connection):
            clock = store.ask_clock(connection)
            groups = batch_rows.CLASSIC_GROUPS.ask(connection, of_groups(group_ids))
            ends = batch_rows.CLASSIC_ENDS.ask(connection, of_groups(group_ids))
            present = batch_rows.CLASSIC_MEMBERS.ask(connection, of_members(members))
        now = clock()
        member_ids: dict[str, set[str]] = {}
        for group_id, member_id in present.rows():
            member_ids.setdefault(group_id, set()).add(member_id)
        ends_ms, marks = batch_rows.first_ends_ms(ends.rows(), now), {}
        for group_id, generation, state_text, deadline_ms, clock_epoch in groups.rows():
            try:
                state = State(state_text)
            except ValueError:
                continue
            times = [ends_ms[group_id]] if group_id in ends_ms else []
            if deadline_ms is not None:
                times.append(now.in_this_epoch_ms(deadline_ms, clock_epoch))
            wait_ms = max(min(times) - now.lease_ms, 0) if times else None
            marks[group_id] = Mark(state, generation, member_ids.get(group_id, set()), wait_ms)
        return marks

    return store.read(read)


def change(store: Store, group_id: str, step: Step, fence: Fence = unfenced) -> Seen:
    """Apply `step` to the group. Raises UnknownMemberIdError if there is no such classic group, and the errors of
    `step`.
    """

    def read(connection: sa.Connection) -> tuple[ClassicGroup, ClassicGroup, StoreClock]:
        now = store.clock(connection)
        before = read_classic(connection, group_id, now)
        if before is None:
            raise UnknownMemberIdError(f"group {group_id!r} has no members of this protocol")
        return before, step(advance(before, now.lease_ms), now.lease_ms), now

    def write(connection: sa.Connection) -> tuple[ClassicGroup, ClassicGroup, StoreClock]:
        rows.read_group(connection, group_id, lock=True)
        before, after, now = read(connection)
        save_classic(connection, before, after, now)
        return before, after, now

    before, after, now = store.read(read)
    if after != before:
        before, after, now = store.transact(write, fence=fence)
        _announce(store, before, after)
    return _seen(after, now)


def join_classic(store: Store, group_id: str, request: Joining) -> Seen:
    """Apply `rules.join`. A group without live members becomes classic. Raises InconsistentGroupProtocolError also if
    the group has live members of another type, and GroupMaxSizeReachedError.
    """
    check_request(request)

    def write(connection: sa.Connection) -> tuple[ClassicGroup | None, ClassicGroup, StoreClock]:
        row = rows.lock_or_make_group(connection, group_id, store.clock(connection))
        refuse_classic_member(connection, group_id, row)
        now = store.clock(connection)
        before = read_classic(connection, group_id, now)
        if before is None:
            dead = rows.dead_members(connection, group_id, now)
            if rows.count_members(connection, group_id) > len(dead):
                raise InconsistentGroupProtocolError(
                    f"group {group_id!r} has members whose assignment the server computes; a member of type"
                    f" {request.protocol_type!r} with {', '.join(name for name, _ in request.protocols)} cannot join"
                )
            rows.delete_members(connection, group_id, dead)
        now_ms = now.lease_ms
        group = ClassicGroup(group_id, row.group.generation) if before is None else advance(before, now_ms)
        after = join(group, request, now_ms)
        check_join(group, request, after)
        save_classic(connection, before, after, now)
        return before, after, now

    before, after, now = store.transact(write)
    _announce(store, before, after)
    failpoint("gateway.group-joined")
    return _seen(after, now)


def advance_classic(store: Store, group_id: str, fence: Fence = unfenced) -> None:
    """Apply `rules.advance` for a caller that is not a member. Groups of another type do not change."""
    with contextlib.suppress(UnknownMemberIdError):
        change(store, group_id, unchanged, fence)


def remove_classic_members(
    store: Store, group_id: str, member_ids: Collection[str], instance_ids: Collection[str]
) -> None:
    """Remove members in one transaction. Raises UnknownMemberIdError if one is not a member; then no member is
    removed.
    """

    def remove(group: ClassicGroup, now_ms: int) -> ClassicGroup:
        for member_id in member_ids:
            group = leave(group, member_id, None, now_ms)
        for instance_id in instance_ids:
            group = leave(group, "", instance_id, now_ms)
        return group

    change(store, group_id, remove)


def live_classic(connection: sa.Connection, group_id: str, now: StoreClock) -> int:
    """Return the number of members whose sessions have not ended, or 0 for a group of another type."""
    group = read_classic(connection, group_id, now)
    return 0 if group is None else len(advance(group, now.lease_ms).joined)


def check_classic_committer(
    connection: sa.Connection, now: StoreClock, group_id: str, member_id: str, instance_id: str | None,
    generation: int, *, transactional: bool,
) -> None:  # fmt: skip
    """Raise the errors of `rules.check_commit`. The result holds until a transaction with the group's lock ends."""
    part = read_part(connection, group_id, member_id, now)
    if part is not None and (part.until_ms is None or part.until_ms > now.lease_ms):
        with contextlib.suppress(UnknownMemberIdError, FencedInstanceIdError):  # the other members decide which
            check_commit(part.group, member_id, instance_id, generation, transactional=transactional)
            return
    group = read_classic(connection, group_id, now)
    if group is None:
        raise UnknownMemberIdError(f"group {group_id!r}: {member_id!r} is not a member")
    check_commit(advance(group, now.lease_ms), member_id, instance_id, generation, transactional=transactional)


def unchanged(group: ClassicGroup, _now_ms: int) -> ClassicGroup:
    """Return the group. This is the step of a caller that only observes it."""
    return group


def _seen(group: ClassicGroup, now: StoreClock) -> Seen:
    at_ms = next_change_ms(group)
    return Seen(group, None if at_ms is None else max(at_ms - now.lease_ms, 0))


def _announce(store: Store, before: ClassicGroup | None, after: ClassicGroup) -> None:
    """Wake the waiting requests in all processes if the state or the generation has changed, or members join."""
    if (
        before is None
        or (before.state, before.generation) != (after.state, after.generation)
        or (after.state is State.PREPARING)
    ):
        store.changes.announce()
