"""Shows the preview of a reset of a group's offsets, and resets them (page `/groups/{group}/reset`).

The preview shows the old and the new offset of every partition. The reset commits exactly these offsets. The reset is
refused if the group has members, or if the committed offsets have changed since the preview.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from spark_log.cluster.topics import find_topics
from spark_log.console.pages.groups import described
from spark_log.console.paths import url
from spark_log.console.routes import Allow, Call, Change, Done, NotFound, View
from spark_log.errors import IllegalArgumentError, InvalidConfigurationError
from spark_log.facts.groups import SHARE_TYPE
from spark_log.facts.share_partitions import share_partitions
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.groups.group_operations import Exactly, OffsetReset, ResetTo, parse_reset, reset_offsets
from spark_log.groups.share.administration import reset_share_offsets
from spark_log.ids import TopicPartition

KINDS = ("earliest", "latest", "offset", "time", "shift")
_PARTITIONS = re.compile(r"[0-9]{1,6}( *, *[0-9]{1,6})*")


@dataclass(frozen=True)
class ResetRow:
    """The reset of a partition. `again` is the number of offsets that the group reads again, and `skipped` of those
    that it does not read.
    """

    topic: str
    partition: int
    current: int | None
    new: int
    again: int
    skipped: int


@dataclass(frozen=True)
class ResetPreview:
    """The preview of a reset.

    `rows` is None until the query names a reset. `offsets` is the JSON that is applied: a list of topic, partition,
    current offset and new offset.
    """

    group: str
    state: str
    members: int
    topics: Sequence[str]
    to: str
    value: str
    topic: str
    partitions: str
    rows: Sequence[ResetRow] | None
    again: int
    skipped: int
    offsets: str


def _facts(call: Call) -> ResetPreview:
    group = described(call)
    is_share = group.type == SHARE_TYPE
    committed = _offsets(call, group.group_id, is_share=is_share)
    visible = {partition: offset for partition, offset in committed.items() if call.sees(partition.topic)}
    kind, value = call.query.get("to", ""), call.query.get("value", "").strip()
    topic, partitions = call.query.get("topic", ""), call.query.get("partitions", "").strip()
    rows: list[ResetRow] | None = None
    if kind:
        to = parse_kind(kind, value)
        chosen = _chosen(call, topic, partitions, visible)
        reset = reset_share_offsets if is_share else reset_offsets
        resets = reset(call.cluster, group.group_id, dict.fromkeys(chosen, to), preview=True)
        rows = [_row(partition, visible.get(partition), resets[partition].new) for partition in sorted(resets)]
    topics = sorted({partition.topic for partition in visible} | {topic for m in group.members for topic in m.topics})
    return ResetPreview(
        group.group_id,
        group.state,
        len(group.members),
        [name for name in topics if call.sees(name)],
        kind or "earliest",
        value,
        topic,
        partitions,
        rows,
        sum(row.again for row in rows or ()),
        sum(row.skipped for row in rows or ()),
        json.dumps([[row.topic, row.partition, row.current, row.new] for row in rows or ()]),
    )


def _offsets(call: Call, group_id: str, *, is_share: bool) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group, or the start offsets of a share group."""
    store = call.cluster.store
    if not is_share:
        return committed_offsets(store, group_id)
    return {each.place: each.start for each in store.read(lambda connection: share_partitions(connection, group_id))}


def parse_kind(kind: str, value: str) -> ResetTo:
    """Return the reset that the form names by one of KINDS and a value. Raises InvalidConfigurationError."""
    if kind not in KINDS:
        raise InvalidConfigurationError(f"to: expected {', '.join(KINDS)}, got {kind!r}")
    text = {"earliest": kind, "latest": kind, "shift": value if value[:1] in ("+", "-") else f"+{value}"}
    try:
        reset = parse_reset(text.get(kind, value))
    except ValueError as error:
        raise InvalidConfigurationError(f"value: {error}") from error
    expected = {"offset": "Exactly", "time": "AtTime", "shift": "ShiftBy"}.get(kind, kind.title())
    if type(reset).__name__ != expected:
        raise InvalidConfigurationError(f"value: {value!r} does not fit {kind!r}")
    return reset


def _chosen(call: Call, topic: str, partitions: str, committed: dict[TopicPartition, int]) -> list[TopicPartition]:
    """Return the chosen partitions of the topic, or without a topic all partitions that have a committed offset."""
    if not topic:
        if partitions:
            raise InvalidConfigurationError("partitions: choose a topic with them")
        if not committed:
            raise IllegalArgumentError("the group has committed nothing: choose a topic")
        return sorted(committed)
    found = call.topic(topic)
    if not partitions:
        return [TopicPartition(found.name, number) for number in range(found.partition_count)]
    if not _PARTITIONS.fullmatch(partitions):
        raise InvalidConfigurationError(f"partitions: expected numbers such as 0,1, got {partitions!r}")
    return [TopicPartition(found.name, number) for number in sorted({int(text) for text in partitions.split(",")})]


def _row(partition: TopicPartition, current: int | None, new: int) -> ResetRow:
    moved = 0 if current is None else new - current
    return ResetRow(partition.topic, partition.partition, current, new, max(0, -moved), max(0, moved))


def _apply(call: Call) -> Done:
    """Commit the offsets of field `offsets`, which has the format of the preview."""
    group_id = call.path["group"]
    resets = _parse_offsets(call.form.get("offsets", ""))
    names = {partition.topic for partition in resets}
    known = call.cluster.store.read(lambda connection: find_topics(connection, names))
    for name in sorted(names):
        if name not in known or not call.sees(name):
            raise NotFound(f"there is no topic {name!r}")
    targets = {partition: Exactly(reset.new) for partition, reset in resets.items()}
    before = {partition: reset.current for partition, reset in resets.items()}
    reset = reset_share_offsets if described(call).type == SHARE_TYPE else reset_offsets
    reset(call.cluster, group_id, targets, expected=before)
    text = f"Committed {len(resets):,} offsets for group {group_id}."
    return Done(url("/groups/{group}", group=group_id), text, {"group": group_id, "committed": len(resets)})


def _parse_offsets(text: str) -> dict[TopicPartition, OffsetReset]:
    expected = "offsets: expected a JSON list of [topic, partition, current offset or null, new offset]"
    try:
        rows = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise InvalidConfigurationError(f"{expected}: {error}") from error
    resets = {}
    for row in rows if isinstance(rows, list) else [None]:
        match row:
            case [str(topic), int(partition), int() | None as current, int(new)] if min(partition, new) >= 0:
                resets[TopicPartition(topic, partition)] = OffsetReset(current, new)
            case _:
                raise InvalidConfigurationError(f"{expected}, got {row!r}")
    if not resets:
        raise InvalidConfigurationError(f"{expected}: it is empty")
    return resets


VIEWS = (View("/groups/{group}/reset", "group_reset.html", _facts),)
CHANGES = (Change("/groups/{group}/reset", Allow.OFFSETS, _apply),)
