"""Reads, locks and writes the rows of share groups: windows, delayed records, configs.

A transaction that changes a window holds its row lock. It locks several rows in the order of their keys.
"""

import json
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from spark_log.config import ClusterSettings, GroupConfig
from spark_log.groups.share.rules import Delayed, Limits, Range, Window
from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_or_replace
from spark_log.metadata.prepared import Answer, Prepared, in_list
from spark_log.metadata.sql_columns import GROUP_CONFIG, PARTITION, SHARE_DELAYED, SHARE_PARTITION
from spark_log.metadata.store_clock import StoreClock
from spark_log.remembered import Remembered

_DUE_MAX = 500
"""The number of due records of a partition that one poll considers."""
_ENTRY = struct.Struct("<qqqiihh")
"""A range: first, lock, until_ms, length, batch, deliveries, index of the member (-1: none)."""


@dataclass(frozen=True)
class ShareRow:
    """A row of table share_partition."""

    group_id: str
    key: Key
    window: Window
    leader_epoch: int
    lock_timeouts: int = 0
    dead_letters: int = 0
    expired: int = 0


class LogFacts(NamedTuple):
    """The facts of a partition's log that a poll needs. `version` is that of `log.segments.plan.PartitionSnapshot`."""

    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    rewrites: int

    @property
    def version(self) -> tuple[int, int]:
        return self.leader_epoch, self.rewrites


def encode_ranges(ranges: Sequence[Range]) -> tuple[bytes, str]:
    """Return the columns `ranges` and `members`."""
    members: dict[str, int] = {}
    entries = bytearray(_ENTRY.size * len(ranges))
    for number, (first, end, lock, until_ms, batch, deliveries, member) in enumerate(ranges):
        index = members.setdefault(member, len(members)) if member else -1
        _ENTRY.pack_into(entries, number * _ENTRY.size, first, lock, until_ms, end - first, batch, deliveries, index)
    return bytes(entries), json.dumps(list(members), separators=(",", ":"))


def decode_ranges(entries: bytes, members: str, *, ended: bool) -> tuple[Range, ...]:
    """Return the ranges of the columns. With `ended`, all locks ended: their times are of another clock epoch."""
    names = [*json.loads(members), ""]
    return tuple(
        Range(first, first + length, lock, 0 if ended else until_ms, batch, deliveries, names[index])
        for first, lock, until_ms, length, batch, deliveries, index in _ENTRY.iter_unpack(entries)
    )


_COLUMNS = (
    SHARE_PARTITION.leader_epoch, SHARE_PARTITION.start_offset, SHARE_PARTITION.next_offset, SHARE_PARTITION.last_lock,
    SHARE_PARTITION.ranges, SHARE_PARTITION.members, SHARE_PARTITION.delayed, SHARE_PARTITION.clock_epoch,
    SHARE_PARTITION.lock_timeouts, SHARE_PARTITION.dead_letters, SHARE_PARTITION.expired,
)  # fmt: skip
_HERE = (
    SHARE_PARTITION.group_id == sa.bindparam("g"),
    SHARE_PARTITION.topic_id == sa.bindparam("t"),
    SHARE_PARTITION.partition == sa.bindparam("p"),
)
_READ = Prepared(sa.select(*_COLUMNS).where(*_HERE))
_LOCK = Prepared(sa.select(*_COLUMNS).where(*_HERE).with_for_update())
_LOG = Prepared(
    sa.select(PARTITION.log_start_offset, PARTITION.high_watermark, PARTITION.leader_epoch, PARTITION.rewrites).where(
        PARTITION.topic_id == sa.bindparam("t"), PARTITION.partition == sa.bindparam("p")
    )
)
_DELAYED_HERE = (
    SHARE_DELAYED.group_id == sa.bindparam("g"),
    SHARE_DELAYED.topic_id == sa.bindparam("t"),
    SHARE_DELAYED.partition == sa.bindparam("p"),
)
_DUE = Prepared(
    sa.select(SHARE_DELAYED.offset, SHARE_DELAYED.due_ms, SHARE_DELAYED.deliveries)
    .where(*_DELAYED_HERE, SHARE_DELAYED.due_ms <= sa.bindparam("now"))
    .order_by(SHARE_DELAYED.due_ms)
    .limit(sa.literal_column(str(_DUE_MAX)))
    .offset(sa.literal_column("0"))
)
_FIRST_DELAYED = Prepared(sa.select(sa.func.min(SHARE_DELAYED.offset)).where(*_DELAYED_HERE))
_CONFIGS = Prepared(sa.select(GROUP_CONFIG.configs).where(GROUP_CONFIG.group_id == sa.bindparam("g")))
_SAVE = Prepared(
    t.share_partition.update()
    .where(*_HERE)
    .values(
        {
            name: sa.bindparam(f"{name}_")
            for name in (
                "leader_epoch", "start_offset", "next_offset", "last_lock", "ranges", "members", "available",
                "unfinished", "archiving", "delayed", "wake_ms", "clock_epoch", "lock_timeouts", "dead_letters",
                "expired",
            )
        }
    )
)  # fmt: skip
_DELAY = Prepared(t.share_delayed.insert())
_END_DELAY = Prepared(t.share_delayed.delete().where(*_DELAYED_HERE, SHARE_DELAYED.offset == sa.bindparam("o")))


def _where(group_id: str, key: Key) -> dict[str, Any]:
    return {"g": group_id, "t": key[0], "p": key[1]}


def ask_row(connection: sa.Connection, group_id: str, key: Key, *, lock: bool) -> Answer:
    return (_LOCK if lock else _READ).ask(connection, _where(group_id, key))


def ask_log(connection: sa.Connection, key: Key) -> Answer:
    return _LOG.ask(connection, {"t": key[0], "p": key[1]})


def ask_due(connection: sa.Connection, group_id: str, key: Key, now_ms: int) -> Answer:
    return _DUE.ask(connection, {**_where(group_id, key), "now": now_ms})


def ask_first_delayed(connection: sa.Connection, group_id: str, key: Key) -> Answer:
    return _FIRST_DELAYED.ask(connection, _where(group_id, key))


def ask_configs(connection: sa.Connection, group_id: str) -> Answer:
    return _CONFIGS.ask(connection, {"g": group_id})


def row_of(answer: Answer, group_id: str, key: Key, now: StoreClock) -> ShareRow | None:
    rows = answer.rows()
    if not rows:
        return None
    [(epoch, start, following, last_lock, ranges, members, delayed, clock_epoch, *totals)] = rows
    decoded = decode_ranges(bytes(ranges), members, ended=clock_epoch != now.clock_epoch)
    return ShareRow(group_id, key, Window(start, following, decoded, last_lock, delayed), epoch, *totals)


def log_of(answer: Answer) -> LogFacts | None:
    rows = answer.rows()
    return LogFacts(*rows[0]) if rows else None


def due_of(answer: Answer) -> list[Delayed]:
    return [Delayed(*row) for row in answer.rows()]


def first_delayed_of(answer: Answer) -> int | None:
    """Return the first offset of a delayed record, or None if there is none."""
    [(offset,)] = answer.rows()
    return None if offset is None else int(offset)


def configs_of(answer: Answer, settings: ClusterSettings) -> GroupConfig:
    rows = answer.rows()
    return parsed_configs(rows[0][0] if rows else "{}", settings)


parsed_configs = Remembered(
    lambda text, settings: GroupConfig.of(json.loads(text), settings), lambda _value, text, _settings: len(text), 65_536
)


def limits_of(config: GroupConfig) -> Limits:
    """Return what the rules need of a group's configs."""
    return Limits(
        delivery_count=config.share_delivery_count_limit,
        record_locks=config.share_partition_max_record_locks,
        lock_ms=config.share_record_lock_duration_ms,
        delayed=config.share_partition_max_delayed_records,
        backoff_ms=config.share_retry_backoff_ms,
        backoff_max_ms=config.share_retry_backoff_max_ms,
        dead_letters=bool(config.errors_deadletterqueue_topic_name),
        renew=config.share_renew_acknowledge_enable,
    )


def _values(row: ShareRow, now: StoreClock) -> dict[str, Any]:
    window = row.window
    ranges, members = encode_ranges(window.ranges)
    return {
        "leader_epoch": row.leader_epoch,
        "start_offset": window.start,
        "next_offset": window.next,
        "last_lock": window.last_lock,
        "ranges": ranges,
        "members": members,
        "available": window.available,
        "unfinished": window.unfinished,
        "archiving": window.archiving,
        "delayed": window.delayed,
        "wake_ms": window.wake_ms,
        "clock_epoch": now.clock_epoch,
        "lock_timeouts": row.lock_timeouts,
        "dead_letters": row.dead_letters,
        "expired": row.expired,
    }


def save(connection: sa.Connection, rows: Iterable[ShareRow], now: StoreClock) -> None:
    """Write locked rows."""
    values = [
        {**_where(row.group_id, row.key), **{f"{name}_": value for name, value in _values(row, now).items()}}
        for row in rows
    ]
    if values:
        _SAVE.run(connection, values)


def delay(connection: sa.Connection, group_id: str, key: Key, delayed: Collection[Delayed]) -> None:
    """Add delayed records."""
    if delayed:
        here = {"group_id": group_id, "topic_id": key[0], "partition": key[1]}
        _DELAY.run(
            connection, [{**here, "offset": d.offset, "due_ms": d.due_ms, "deliveries": d.deliveries} for d in delayed]
        )


def end_delays(connection: sa.Connection, group_id: str, key: Key, offsets: Collection[int]) -> None:
    """Delete delayed records."""
    if offsets:
        _END_DELAY.run(connection, [{**_where(group_id, key), "o": offset} for offset in offsets])


def drop_delays(
    connection: sa.Connection, group_id: str, key: Key, *, below: int | None = None, above: int | None = None
) -> int:
    """Delete the delayed records below or at and above an offset, or all, and return how many there were."""
    here = [SHARE_DELAYED.group_id == group_id, SHARE_DELAYED.topic_id == key[0], SHARE_DELAYED.partition == key[1]]
    if below is not None:
        here.append(SHARE_DELAYED.offset < below)
    if above is not None:
        here.append(SHARE_DELAYED.offset >= above)
    return connection.execute(t.share_delayed.delete().where(*here)).rowcount


def insert_rows(connection: sa.Connection, rows: Sequence[ShareRow], now: StoreClock) -> None:
    """Make the rows of partitions that the group reads for the first time. The group's row is locked."""
    if rows:
        here = [{"group_id": row.group_id, "topic_id": row.key[0], "partition": row.key[1]} for row in rows]
        connection.execute(
            t.share_partition.insert(), [{**at, **_values(row, now)} for at, row in zip(here, rows, strict=True)]
        )


def delete_state(connection: sa.Connection, group_id: str, topic_id: int | None = None) -> bool:
    """Delete the state of a group, or of one of its topics, and return whether there was some. The group's row is
    locked. Like polls, it locks the rows of partitions in order, before delayed records.
    """
    here = [SHARE_PARTITION.group_id == group_id]
    delayed = [SHARE_DELAYED.group_id == group_id]
    if topic_id is not None:
        here.append(SHARE_PARTITION.topic_id == topic_id)
        delayed.append(SHARE_DELAYED.topic_id == topic_id)
    keys = sa.select(SHARE_PARTITION.topic_id, SHARE_PARTITION.partition).where(*here)
    locked = keys.order_by(SHARE_PARTITION.topic_id, SHARE_PARTITION.partition).with_for_update()
    found = connection.execute(locked).all()
    if found:
        connection.execute(t.share_partition.delete().where(*here))
        connection.execute(t.share_delayed.delete().where(*delayed))
    return bool(found)


def partitions_of(connection: sa.Connection, group_id: str, topic_ids: Collection[int]) -> set[Key]:
    """Return the keys of the group's rows of these topics."""
    query = sa.select(SHARE_PARTITION.topic_id, SHARE_PARTITION.partition).where(
        SHARE_PARTITION.group_id == group_id, in_list(SHARE_PARTITION.topic_id, list(topic_ids))
    )
    return {(topic_id, partition) for topic_id, partition in connection.execute(query)}


def has_rows(connection: sa.Connection, group_id: str) -> bool:
    query = sa.select(SHARE_PARTITION.topic_id).where(SHARE_PARTITION.group_id == group_id).limit(1)
    return connection.execute(query).first() is not None


def read_configs(connection: sa.Connection, group_id: str) -> dict[str, str]:
    """Return the configs that the group sets."""
    rows = _CONFIGS.rows(connection, {"g": group_id})
    configs: dict[str, str] = json.loads(rows[0][0]) if rows else {}
    return configs


def groups_with_configs(connection: sa.Connection) -> list[str]:
    """Return the ids of the groups that set configs, in order."""
    query = sa.select(GROUP_CONFIG.group_id).where(GROUP_CONFIG.configs != "{}").order_by(GROUP_CONFIG.group_id)
    return list(connection.execute(query).scalars())


def save_configs(connection: sa.Connection, group_id: str, configs: Mapping[str, str]) -> None:
    """Write the configs that the group sets. A row without configs stays, because another transaction may wait for its
    lock.
    """
    text = json.dumps(dict(sorted(configs.items())), separators=(",", ":"))
    insert_or_replace(connection, t.group_config, [{"group_id": group_id, "configs": text}])


def with_delays_dropped(row: ShareRow, dropped: int, *, expired: bool) -> ShareRow:
    """Return the row after its delayed records were deleted."""
    window = replace(row.window, delayed=max(0, row.window.delayed - dropped))
    return replace(row, window=window, expired=row.expired + (dropped if expired else 0))
