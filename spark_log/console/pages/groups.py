"""Shows groups with state, members and lag, and the configs of share groups (pages `/groups` and `/groups/{group}`).

Deletes groups and their offsets, and changes the configs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from spark_log.cluster.topics import find_topics
from spark_log.config.values import can_be_stored
from spark_log.console.charts import Chart, chart
from spark_log.console.listing import Listing, listing, row_of
from spark_log.console.paths import url
from spark_log.console.routes import Allow, Call, Change, Done, Forbidden, NotFound, View
from spark_log.errors import InvalidConfigurationError
from spark_log.facts.groups import SHARE_TYPE, GroupDescription, GroupListing, describe_groups, group_lag, list_groups
from spark_log.facts.metrics.activity import NO_LAG, lag_by_group
from spark_log.facts.metrics.history import Kind
from spark_log.facts.share_groups import DEAD_LETTER_TOPIC, group_config_entries
from spark_log.facts.share_partitions import share_partitions
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.groups.group_operations import delete_group, delete_offsets
from spark_log.groups.share.administration import alter_group_configs, delete_share_offsets
from spark_log.ids import TopicPartition


@dataclass(frozen=True)
class GroupRow:
    """A group.

    `partitions` is the number of partitions with a committed offset. `lag` is their total lag in records. `lag_s` is
    the largest lag of a partition in seconds, or None if it is unknown.
    """

    group: str
    state: str
    members: int
    partitions: int
    lag: int
    lag_s: float | None


@dataclass(frozen=True)
class Groups:
    listing: Listing[GroupRow]


@dataclass(frozen=True)
class MemberRow:
    """A member of a group. `assignment` has the partitions of topics that the user sees."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    protocol: str
    generation: int
    assignment: Sequence[str]
    partitions: int
    session_left_ms: int


@dataclass(frozen=True)
class LagRow:
    """The committed offset of a partition and its lag, both None without a commit. `lag_s` is the age of the next
    record to read.
    """

    topic: str
    partition: int
    committed: int | None
    log_start: int
    log_end: int
    lag: int | None
    lag_s: float | None
    member: str | None


@dataclass(frozen=True)
class ShareRow:
    """A partition of a share group: offsets, and numbers of records by state."""

    topic: str
    partition: int
    start: int
    next: int
    log_end: int
    in_flight: int
    available: int
    delayed: int
    archiving: int
    lag: int


@dataclass(frozen=True)
class ShareConfigRow:
    """A config of a share group. `origin` says where its value comes from."""

    name: str
    value: str
    origin: str
    unit: str
    doc: str


@dataclass(frozen=True)
class Group:
    """A group.

    `type` is Kafka's type of the group: consumer, classic or share. `protocol_type` is consumer, share, or connect and
    others for classic groups. `lag` is the total lag in records of all partitions that the user sees. `topics` are the
    topics of these partitions. A share group has `share` instead of `partitions`, and `configs`. `dead_letter_topic` is
    the topic that its config names, or None if the topic does not exist or the user does not see it.
    """

    group: str
    type: str
    protocol_type: str
    state: str
    assignor: str
    generation: int
    lag: int
    lag_s: float | None
    members: Sequence[MemberRow]
    topics: Sequence[str]
    partitions: Listing[LagRow]
    share: Listing[ShareRow] | None
    configs: Sequence[ShareConfigRow]
    dead_letter_topic: str | None


_COLUMNS = tuple(field.name for field in fields(GroupRow))
_LAG_COLUMNS = tuple(field.name for field in fields(LagRow))
_SHARE_COLUMNS = tuple(field.name for field in fields(ShareRow))
_HIDDEN = "***"


def _groups(call: Call) -> Groups:
    lags = lag_by_group(call.snapshot().groups)
    rows = [
        GroupRow(group.group_id, group.state, group.members, lag.partitions, lag.lag, lag.lag_s)
        for group in visible_groups(call)
        for lag in [lags.get(group.group_id, NO_LAG)]
    ]
    return Groups(listing(rows, call.query, columns=_COLUMNS, sort="group", name=lambda row: row.group))


def visible_groups(call: Call) -> list[GroupListing]:
    """Return the groups with an offset or a member of a topic that the user sees."""
    groups = list_groups(call.cluster.store, with_topics=not call.role.sees_all)
    if call.role.sees_all:
        return groups
    committed = {part.group for part in call.snapshot().groups}
    return [group for group in groups if group.group_id in committed or any(map(call.sees, group.topics))]


def described(call: Call) -> GroupDescription:
    """Return the group of the path. Raises NotFound if it is unknown, or has only topics that the user does not see."""
    group_id = call.path["group"]
    if not can_be_stored(group_id):
        raise NotFound(f"there is no group {group_id!r}")
    [description] = describe_groups(call.cluster.store, [group_id])
    if description.state != "Dead" and not call.role.sees_all:
        topics = {topic for member in description.members for topic in member.topics}
        topics |= offset_topics(call, group_id)
        if not any(map(call.sees, topics)):
            raise NotFound(f"there is no group {group_id!r}")
    if description.state == "Dead":
        raise NotFound(f"there is no group {group_id!r}")
    return description


def offset_topics(call: Call, group_id: str) -> set[str]:
    """Return the topics in which the group has committed offsets, or a share group has start offsets."""
    store = call.cluster.store
    shared = store.read(lambda connection: share_partitions(connection, group_id))
    return {partition.topic for partition in committed_offsets(store, group_id)} | {each.topic for each in shared}


def _share_rows(call: Call, group_id: str) -> Listing[ShareRow]:
    rows = [
        row_of(ShareRow, each, log_end=each.high_watermark)
        for each in call.cluster.store.read(lambda connection: share_partitions(connection, group_id))
        if call.sees(each.topic)
    ]
    return listing(
        rows, call.query, columns=_SHARE_COLUMNS, sort="topic", name=lambda row: f"{row.topic}-{row.partition:06}"
    )


def _share_configs(call: Call, group_id: str) -> list[ShareConfigRow]:
    return [
        row_of(
            ShareConfigRow,
            entry.definition,
            value=_shown(call, entry.definition.name, entry.value),
            origin=entry.origin.value,
        )
        for entry in group_config_entries(call.cluster.store, group_id)
    ]


def _shown(call: Call, name: str, value: str) -> str:
    """Return the value of a config, or *** in place of the name of a topic that the user does not see."""
    return value if name != DEAD_LETTER_TOPIC or not value or call.sees(value) else _HIDDEN


def _dead_letter_topic(call: Call, configs: Sequence[ShareConfigRow]) -> str | None:
    named = [row.value for row in configs if row.name == DEAD_LETTER_TOPIC and row.value not in ("", _HIDDEN)]
    return next(iter(call.cluster.store.read(lambda connection: find_topics(connection, named))), None)


def _group(call: Call) -> Group:
    description = described(call)
    is_share = description.type == SHARE_TYPE
    share = _share_rows(call, description.group_id) if is_share else None
    configs = _share_configs(call, description.group_id) if is_share else []
    ages = {
        (part.topic, part.partition): part.lag_s
        for part in call.snapshot().groups
        if part.group == description.group_id
    }
    rows = [
        row_of(
            LagRow,
            row,
            lag_s=ages.get((row.topic, row.partition)) if row.lag else None,
            member=row.member.member_id if row.member else None,
        )
        for row in group_lag(call.cluster, description.group_id)
        if call.sees(row.topic)
    ]
    members = []
    for member in description.members:
        topics = {*member.topics, *(partition.topic for partition in member.assignment)}
        if not call.role.sees_all and not any(map(call.sees, topics)):
            continue
        seen = sorted(partition for partition in member.assignment if call.sees(partition.topic))
        members.append(row_of(MemberRow, member, assignment=[str(each) for each in seen], partitions=len(seen)))
    partitions = listing(
        () if is_share else rows,
        {} if is_share else call.query,
        columns=_LAG_COLUMNS,
        sort="topic",
        name=lambda row: f"{row.topic}-{row.partition:06}",
    )
    return row_of(
        Group,
        description,
        group=description.group_id,
        lag=sum(row.lag or 0 for row in rows),
        lag_s=max((row.lag_s for row in rows if row.lag_s is not None), default=None),
        members=members,
        topics=sorted({row.topic for row in rows}),
        partitions=partitions,
        share=share,
        configs=configs,
        dead_letter_topic=_dead_letter_topic(call, configs),
    )


def _lag_over_time(call: Call) -> Chart:
    if not call.role.sees_all:
        raise Forbidden("The history of a group is of all its topics: your role does not show all of them.")
    found = described(call)
    lines = {"lag": "lag"}
    return chart(call, f"Lag of group {found.group_id}", "records", Kind.GROUP, found.group_id, lines)


# Changes -------------------------------------------------------------------------------------------------------------


def refuse_hidden(call: Call, topics: set[str]) -> None:
    """Raise Forbidden if the user's role hides one of the topics."""
    if not all(map(call.sees, topics)):
        raise Forbidden("The group has offsets of topics that your role does not show.")


def _delete_group(call: Call) -> Done:
    found = described(call)
    if call.form.get("confirm") != found.group_id:
        raise InvalidConfigurationError("confirm: to delete the group with all its offsets, give its id")
    refuse_hidden(call, offset_topics(call, found.group_id))
    delete_group(call.cluster.store, found.group_id)
    return Done("/groups", f"Deleted group {found.group_id}.", {"deleted": found.group_id})


def _delete_offsets(call: Call) -> Done:
    """Delete the offsets of all partitions of the topic in field `topic`."""
    description, topic = described(call), call.topic(call.form.get("topic", ""))
    here = url("/groups/{group}", group=description.group_id)
    if description.type == SHARE_TYPE:
        error = delete_share_offsets(call.cluster.store, description.group_id, [topic.name])[topic.name]
        if error is not None:
            raise error
        facts = {"group": description.group_id, "topic": topic.name}
        return Done(here, f"Deleted the offsets of topic {topic.name}.", facts)
    committed = committed_offsets(call.cluster.store, description.group_id)
    chosen = [TopicPartition(*partition) for partition in committed if partition.topic == topic.name]
    delete_offsets(call.cluster.store, description.group_id, chosen)
    text = f"Deleted {len(chosen):,} offsets of topic {topic.name}."
    return Done(here, text, {"group": description.group_id, "topic": topic.name, "deleted": len(chosen)})


def _alter_configs(call: Call) -> Done:
    """Set the config that field `config` names to field `value`, or reset it if field `reset` is 1."""
    group = described(call)
    if group.type != SHARE_TYPE:
        raise NotFound(f"group {group.group_id!r} is not a share group: it has no configs")
    refuse_hidden(call, offset_topics(call, group.group_id))
    name, value = call.form.get("config", ""), call.form.get("value")
    if call.form.get("reset") in ("1", "true"):
        value = None
    elif value is None:
        raise InvalidConfigurationError("value: expected the new value of the config, or reset=1")
    if name == DEAD_LETTER_TOPIC and value and not call.sees(value):
        raise NotFound(f"there is no topic {value!r}")
    changed = alter_group_configs(call.cluster.store, group.group_id, {name: value}).as_text()[name]
    here = url("/groups/{group}", group=group.group_id) + "#configs"
    shown = _shown(call, name, changed) or "empty"
    return Done(here, f"{name} of group {group.group_id} is {shown} now.", {"config": name, "value": shown})


VIEWS = (
    View("/groups", "groups.html", _groups, title="Groups"),
    View("/groups/{group}", "group.html", _group),
    View("/groups/{group}/lag", "chart.html", _lag_over_time),
)
CHANGES = (
    Change("/groups/{group}/delete", Allow.OFFSETS, _delete_group),
    Change("/groups/{group}/delete-offsets", Allow.OFFSETS, _delete_offsets),
    Change("/groups/{group}/configs", Allow.CONFIGS, _alter_configs),
)
