"""The commands `spark-log group …`, which show groups of all types and their lag, and reset and delete groups."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_log.cli import completion
from spark_log.cli.output import cell, count_of, note, print_facts, print_json, print_rows, print_table, say
from spark_log.cli.shared_options import Cluster_, Json, open_cluster, partitions_option, reset_target_option

if TYPE_CHECKING:
    from spark_log.facts.groups import GroupDescription, PartitionLag
    from spark_log.facts.share_groups import ShareGroupDescription
    from spark_log.groups.group_operations import ResetTo

app = typer.Typer(no_args_is_help=True, help="Show groups and their lag, reset and delete them.")

GroupId = Annotated[
    str, typer.Argument(metavar="GROUP", help="Id of the group.", show_default=False, autocompletion=completion.groups)
]
Topics = Annotated[list[str] | None, partitions_option("all committed")]
LIVE_S = 1.0


@app.command("list")
def list_(cluster: Cluster_, as_json: Json = False) -> None:
    """List the groups with their state, members and lag."""
    from spark_log.facts.groups import group_lag, list_groups

    with open_cluster(cluster) as opened:
        listed = list_groups(opened.store, with_topics=as_json)
        groups = [(group, group_lag(opened, group.group_id)) for group in listed]
    document = [{**vars(group), "topics": sorted(group.topics), "lag": _total(lag)} for group, lag in groups]
    rows = [(group.group_id, group.type, group.state, group.members, len(lag), _total(lag)) for group, lag in groups]
    columns = ("group", "type", "state", "members", "partitions", "lag")
    print_rows(as_json, document, columns, rows, "There is no group.")


@app.command()
def describe(
    group: GroupId,
    cluster: Cluster_,
    follow: Annotated[bool, typer.Option("--follow", help="Show the lag live; Ctrl-C stops.")] = False,
    as_json: Json = False,
) -> None:
    """Show a group: its members, their partitions, and the lag of every partition.

    **Examples**

    - `spark-log group describe readers`
    - `spark-log group describe readers --follow`
    """
    from spark_log.errors import GroupIdNotFoundError
    from spark_log.facts.groups import PROTOCOL_TYPE, SHARE_TYPE, describe_groups, group_lag
    from spark_log.facts.share_groups import describe_share_group

    with open_cluster(cluster) as opened:

        def read() -> tuple["GroupDescription", list["PartitionLag"]]:
            [described] = describe_groups(opened.store, [group])
            if described.state == "Dead":
                raise GroupIdNotFoundError(f"group {group!r}: there is no such group")
            return described, group_lag(opened, group)

        if follow:
            _follow(read)
            return
        described, lag = read()
        share = describe_share_group(opened.store, group) if described.type == SHARE_TYPE else None
    if as_json:
        print_json({**_as_json(described, lag), **({} if share is None else {"share_partitions": _share_json(share)})})
        return
    facts: dict[str, Any] = {"group": group, "state": described.state, "type": described.type}
    facts |= {"generation": described.generation, "target generation": described.target_generation}
    if described.protocol_type not in (PROTOCOL_TYPE, described.type):
        facts["protocol type"] = described.protocol_type
    print_facts({**facts, "assignor": described.assignor or None, "lag": _total(lag)})
    if described.members:
        rows = [
            (
                member.member_id, member.instance_id, member.host, member.protocol, member.generation,
                len(member.assignment), f"{member.session_left_ms} ms",
            )
            for member in described.members
        ]  # fmt: skip
        columns = ("member", "instance id", "host", "protocol", "generation", "partitions", "session left")
        print_table("members", columns, rows)
    if share is not None:
        partitions = [
            (str(p.place), p.start, p.next, p.high_watermark, p.in_flight, p.available, p.delayed, p.archiving, p.lag)
            for p in share.partitions
        ]
        print_table("partitions", _SHARE_COLUMNS, partitions)
    elif lag:
        print_table("partitions", _LAG_COLUMNS, [_lag_row(row) for row in lag])


_SHARE_COLUMNS = ("partition", "start", "next", "end", "in flight", "available", "delayed", "archiving", "lag")
_LAG_COLUMNS = ("partition", "committed", "end", "lag", "member")


def _lag_row(row: "PartitionLag") -> tuple[object, ...]:
    member = row.member.member_id if row.member else None
    return (f"{row.topic}-{row.partition}", row.committed, row.log_end, row.lag, member)


def _follow(read: Any) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from spark_log import clock

    def table() -> Table:
        described, lag = read()
        members = count_of(len(described.members), "member")
        title = f"{described.group_id}: {described.state}, {members}, lag {_total(lag):,}"
        shown = Table(*_LAG_COLUMNS, title=cell(title), title_justify="left")
        for row in lag:
            shown.add_row(*map(cell, _lag_row(row)))
        return shown

    with Live(table(), console=Console(), auto_refresh=False) as live:
        try:
            while True:
                clock.sleep_s(LIVE_S)
                live.update(table(), refresh=True)
        except KeyboardInterrupt:
            pass


@app.command()
def reset(
    group: GroupId,
    cluster: Cluster_,
    to: Annotated[str, reset_target_option("the committed offset")],
    topic: Topics = None,
    execute: Annotated[bool, typer.Option("--execute", help="Commit the new offsets.")] = False,
    as_json: Json = False,
) -> None:
    """Show the offsets that a reset would commit for a group without live members. With --execute, commit them.

    New offsets are limited to the range from the log start offset to the high watermark. As in Kafka's tool, nothing
    changes without --execute. A share group forgets its unfinished and delayed records in the partitions.

    **Examples**

    - `spark-log group reset readers --to earliest --topic events`
    - `spark-log group reset readers --to -100 --topic events:0,1 --execute`
    """
    reset_group(group, cluster, to, topic, execute=execute, as_json=as_json)


def reset_group(
    group: str,
    cluster: str,
    to: str,
    topics: Sequence[str] | None,
    *,
    execute: bool,
    as_json: bool,
    as_share_group: bool = False,
) -> None:
    """Reset a group of any type. With `as_share_group`, a group that does not exist is created as a share group."""
    from spark_log.facts.groups import SHARE_TYPE, describe_groups
    from spark_log.groups.group_operations import reset_offsets
    from spark_log.groups.share.administration import reset_share_offsets

    where = parse_target(to)
    with open_cluster(cluster) as opened:
        share = as_share_group or describe_groups(opened.store, [group])[0].type == SHARE_TYPE
        known = () if topics else (_share_places if share else _committed)(opened, group)
        targets = dict.fromkeys(choose_partitions(opened, topics, known), where)
        if share and execute:
            from spark_log.clients.admin import share_groups
            from spark_log.clients.admin.audit import local_user

            resets = share_groups.reset_offsets(opened, local_user(), "cli", group, targets)
        else:
            resets = (reset_share_offsets if share else reset_offsets)(opened, group, targets, dry_run=not execute)
    before = "start" if share else "current"
    document = [
        {**tp._asdict(), f"{before}_offset": each.current, "new_offset": each.new} for tp, each in resets.items()
    ]
    rows = [(str(tp), each.current, each.new) for tp, each in resets.items()]
    print_rows(as_json, document, ("partition", f"{before} offset", "new offset"), rows)
    if not execute:
        note("Nothing is changed. To reset the group, add --execute.")
    elif not as_json:
        say(f"Reset {count_of(len(resets), 'partition')} of group {group}.")


@app.command()
def delete(group: GroupId, cluster: Cluster_) -> None:
    """Delete a group without live members, with all its offsets. The configs of a share group stay."""
    from spark_log.facts.groups import SHARE_TYPE, describe_groups
    from spark_log.groups.group_operations import delete_group

    with open_cluster(cluster) as opened:
        [described] = describe_groups(opened.store, [group])
        if described.type == SHARE_TYPE:
            from spark_log.clients.admin.audit import local_user
            from spark_log.clients.admin.share_groups import delete_group as delete_share_group

            delete_share_group(opened, local_user(), "cli", group)
        else:
            delete_group(opened.store, group)
    say(f"Deleted group {group}.")


@app.command("delete-offsets")
def delete_offsets(group: GroupId, cluster: Cluster_, topic: Topics = None) -> None:
    """Delete committed offsets of a group in topics that none of its live members reads."""
    from spark_log.groups.group_operations import delete_offsets_of_each

    with open_cluster(cluster) as opened:
        committed = _committed(opened, group)
        chosen = choose_partitions(opened, topic, committed)
        outcomes = delete_offsets_of_each(opened.store, group, chosen)
    deleted = [tp for tp, error in outcomes.items() if error is None and tp in committed]
    say(f"Deleted the offsets of {count_of(len(deleted), 'partition')} of group {group}.")
    errors = {str(error) for error in outcomes.values() if error is not None}
    for text in sorted(errors):
        note(f"spark-log: {text}")
    if errors:
        raise typer.Exit(1)


@app.command("remove-member")
def remove_member(
    group: GroupId,
    cluster: Cluster_,
    member: Annotated[list[str] | None, typer.Argument(metavar="[MEMBER]...", help="Member ids.")] = None,
    instance: Annotated[list[str] | None, typer.Option("--instance", help="group.instance.id; repeatable.")] = None,
) -> None:
    """Remove members from a group, including static ones. The other members take over their partitions."""
    from spark_log.groups.group_operations import remove_from_group

    if not member and not instance:
        raise typer.BadParameter("name a member or an --instance")
    with open_cluster(cluster) as opened:
        remove_from_group(opened.store, group, member or (), instance or ())
    say(f"Removed {count_of(len(member or ()) + len(instance or ()), 'member')} from group {group}.")


def parse_target(text: str) -> "ResetTo":
    """Parse the value of --to. Raises a usage error."""
    from spark_log.groups.group_operations import parse_reset

    try:
        return parse_reset(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from None


def _committed(opened: Any, group: str) -> dict[Any, int]:
    from spark_log.groups.committed_offsets import committed_offsets

    return committed_offsets(opened.store, group)


def _share_places(opened: Any, group: str) -> list[Any]:
    from spark_log.facts.share_groups import describe_share_group

    return [partition.place for partition in describe_share_group(opened.store, group).partitions]


def choose_partitions(opened: Any, topics: Sequence[str] | None, group_partitions: Collection[Any]) -> list[Any]:
    """Return the partitions that --topic names, or `group_partitions` without it. Raises a usage error."""
    from spark_log.cluster.topics import find_topic
    from spark_log.ids import TopicPartition

    if not topics:
        if not group_partitions:
            raise typer.BadParameter("the group has no offset: name a --topic")
        return sorted(group_partitions)
    chosen: list[TopicPartition] = []
    for text in topics:
        name, separator, numbers = text.partition(":")
        topic = opened.store.read(lambda connection, name=name: find_topic(connection, name))
        try:
            wanted: Iterable[int] = map(int, numbers.split(",")) if separator else range(topic.partition_count)
            chosen += [TopicPartition(name, number) for number in wanted]
        except ValueError:
            raise typer.BadParameter(f"expected TOPIC or TOPIC:0,1, got {text!r}", param_hint="--topic") from None
    return sorted(set(chosen))


def _total(lag: Sequence["PartitionLag"]) -> int:
    return sum(row.lag or 0 for row in lag)


def _as_json(described: "GroupDescription", lag: Sequence["PartitionLag"]) -> Any:
    members = [
        {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "client_id": member.client_id,
            "host": member.host,
            "topics": sorted(member.topics),
            "assignment": [str(tp) for tp in sorted(member.assignment)],
            "target": [str(tp) for tp in sorted(member.target)],
            "generation": member.generation,
            "protocol": member.protocol,
            "session_left_ms": member.session_left_ms,
        }
        for member in described.members
    ]
    partitions = [{**vars(row), "member": row.member.member_id if row.member else None} for row in lag]
    return {**vars(described), "members": members, "partitions": partitions}


def _share_json(share: "ShareGroupDescription") -> list[dict[str, Any]]:
    return [{**vars(each), "unfinished": each.unfinished, "lag": each.lag} for each in share.partitions]
