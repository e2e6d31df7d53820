"""Reads what the partitions of share groups offer, without row locks. The members in a process share these reads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import sqlalchemy as sa

from spark_log import clock
from spark_log.config import GroupConfig
from spark_log.groups.share import rows
from spark_log.groups.share.offers import Offer, ask_offers, offers_of
from spark_log.groups.share.rules import Delayed, Limits
from spark_log.groups.share.service import Outcome
from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata.prepared import one_message
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock

_REMEMBERED_S = 0.2
_SHARED_S = 1.0
_GROUPS_MAX = 1_000


@dataclass(frozen=True)
class Look:
    """The offers of all partitions of a group to its members, as of one read."""

    offers: dict[Key, Offer]
    due: dict[Key, list[Delayed]]
    """The delayed records that are due, by partition."""
    config: GroupConfig
    now: StoreClock


def look(store: Store, group_id: str) -> Look:
    """Read what a poll of the group may find. It writes nothing."""

    def read(connection: sa.Connection) -> Look:
        with one_message(connection):
            clock = store.ask_clock(connection)
            configs = rows.ask_configs(connection, group_id)
            answer = ask_offers(connection, group_id)
        now, offers = clock(), offers_of(answer)
        due = {
            key: rows.due_of(rows.ask_due(connection, group_id, key, now.wall_ms))
            for key, offer in offers.items()
            if offer.due_ms is not None and offer.due_ms <= now.wall_ms
        }
        return Look(offers, due, rows.configs_of(configs, store.settings), now)

    return store.read(read)


def has_work(offer: Offer, now: StoreClock, limits: Limits) -> bool:
    """Return whether a poll may acquire records of the partition now, or must follow the log first: after an election
    it may have other records below `next_offset`, and after retention there may be room for more delayed records.
    """
    ended = offer.wake_ms is not None and now.expired(offer.wake_ms, offer.clock_epoch)
    room = offer.unfinished < limits.record_locks
    due = room and offer.due_ms is not None and offer.due_ms <= now.wall_ms
    new = room and offer.delayed < limits.delayed and offer.next_offset < offer.log.high_watermark
    elected = offer.leader_epoch != offer.log.leader_epoch
    removed = offer.first_delayed is not None and offer.first_delayed < offer.log.log_start_offset
    return bool(offer.available) or ended or new or elected or removed or due


def next_change_ms(look: Look, keys: Iterable[Key]) -> int | None:
    """Return the milliseconds until the first lock ends in these partitions, or the first delayed record is due in one
    that has room for unfinished records. None means neither.
    """
    offers = [look.offers[key] for key in keys if key in look.offers]
    record_locks = rows.limits_of(look.config).record_locks
    times = [
        offer.wake_ms - look.now.lease_ms
        for offer in offers
        if offer.wake_ms is not None and offer.clock_epoch == look.now.clock_epoch
    ]
    times += [
        offer.due_ms - look.now.wall_ms
        for offer in offers
        if offer.due_ms is not None and offer.unfinished < record_locks
    ]
    return max(0, min(times)) if times else None


@dataclass(frozen=True)
class Seen:
    """A look, updated by later polls of this process, and the time of its read."""

    look: Look
    looked_s: float
    change: int = -1
    """The number of the store's last change before the look."""


class Looks:
    """The last looks of a process, by group. Safe to share between threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looks: dict[str, Seen] = {}
        self._left: dict[str, Seen] = {}
        """By group: the offers after its last poll."""

    def new(self, group_id: str) -> Seen:
        """Read the store, and remember the look."""
        began_s, change = clock.monotonic_s(), self._store.changes.current()
        seen = self._looks[group_id] = Seen(look(self._store, group_id), began_s, change)
        if len(self._looks) > _GROUPS_MAX:
            self._looks = {group_id: seen}
        return seen

    def shared(self, group_id: str, assigned: Mapping[Key, str]) -> Seen | None:
        """Return the last look of any member if nothing has been committed since, as far as the store can tell."""
        seen = self._looks.get(group_id)
        if seen is None or not self._store.changes.exact or not assigned.keys() <= seen.look.offers.keys():
            return None
        lasts_s = _SHARED_S
        next_ms = next_change_ms(seen.look, seen.look.offers)
        if next_ms is not None:
            lasts_s = min(lasts_s, next_ms / 1000)
        is_over = clock.monotonic_s() - seen.looked_s >= lasts_s or self._store.changes.current() != seen.change
        return None if is_over else seen

    def left_by_last_poll(self, group_id: str) -> Seen | None:
        """Return the look that the last poll of the group left, so that the next one saves a read of the store. What it
        says of other polls and of the log is at most _REMEMBERED_S old. The transaction decides in any case.
        """
        seen = self._left.get(group_id)
        return seen if seen is not None and clock.monotonic_s() - seen.looked_s < _REMEMBERED_S else None

    def note_poll(self, group_id: str, seen: Seen, outcome: Outcome) -> None:
        """Remember the look of a poll, with the offers that it has left."""
        left = replace(seen.look, offers={**seen.look.offers, **outcome.offers}, due={})
        self._left[group_id] = Seen(left, seen.looked_s)
        if len(self._left) > _GROUPS_MAX:
            self._left.clear()
