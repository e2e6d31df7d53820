"""Implements `spark-log share …`: configures, resets and peeks into share groups. `group` lists and deletes them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_log.cli import completion
from spark_log.cli.groups.group import GroupId, choose_partitions, reset_group
from spark_log.cli.output import print_rows
from spark_log.cli.shared_options import (
    Cluster_,
    Json,
    open_cluster,
    parse_changes,
    partitions_option,
    reset_target_option,
    set_option,
    unset_option,
)

if TYPE_CHECKING:
    from spark_log.facts.share_groups import PeekedRecord

app = typer.Typer(no_args_is_help=True, help="Configure share groups (queues), reset them, and show their records.")

_VALUE_MAX = 60

Topics = Annotated[list[str] | None, partitions_option("all that the group reads")]


@app.command()
def config(
    group: GroupId,
    cluster: Cluster_,
    set_: Annotated[list[str] | None, set_option("Set a config", completion.group_configs)] = None,
    unset: Annotated[list[str] | None, unset_option("a config", completion.group_configs)] = None,
    as_json: Json = False,
) -> None:
    """Show or set the configs of a share group, which need not exist yet. Members apply changes at their next poll.

    **Examples**

    - `spark-log share config workers`
    - `spark-log share config workers --set share.auto.offset.reset=earliest --set share.delivery.count.limit=3`
    """
    from spark_log.clients.admin.audit import local_user
    from spark_log.clients.admin.configs import alter_recorded
    from spark_log.facts.share_groups import group_config_entries

    changes = parse_changes(set_, unset)
    with open_cluster(cluster) as opened:
        if changes:
            alter_recorded(opened, local_user(), "cli", group, changes)
        entries = group_config_entries(opened.store, group)
    document = {entry.definition.name: {"value": entry.value, "origin": entry.origin.value} for entry in entries}
    rows = [(entry.definition.name, entry.value, entry.origin.value) for entry in entries]
    print_rows(as_json, document, ("config", "value", "from"), rows)


@app.command()
def reset(
    group: GroupId,
    cluster: Cluster_,
    to: Annotated[str, reset_target_option("the start offset")],
    topic: Topics = None,
    execute: Annotated[bool, typer.Option("--execute", help="Reset the group.")] = False,
    as_json: Json = False,
) -> None:
    """Show where a share group without members would begin after a reset. With --execute, reset it.

    This command is `group reset`, but also creates a share group that does not exist.

    **Examples**

    - `spark-log share reset workers --to earliest`
    - `spark-log share reset workers --to 2026-01-31T12:00:00Z --topic jobs:0,1 --execute`
    """
    reset_group(group, cluster, to, topic, execute=execute, as_json=as_json, as_share_group=True)


@app.command()
def peek(
    group: GroupId,
    cluster: Cluster_,
    topic: Topics = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=10_000, metavar="N", help="Records of each state and partition.")
    ] = 10,
    as_json: Json = False,
) -> None:
    """Show the records that a share group works on, and those that it would acquire next. Nothing is acquired.

    The states of records are acquired, available (for the next delivery), delayed, archiving (the dead letter is not
    written yet), and next.

    **Examples**

    - `spark-log share peek workers`
    - `spark-log share peek workers --topic jobs:0 --limit 100 --json`
    """
    from spark_log.facts.share_groups import peek_records

    with open_cluster(cluster) as opened:
        chosen = choose_partitions(opened, topic, ()) if topic else ()
        records = peek_records(opened, group, chosen, limit)
    rows = [
        (
            str(each.partition), each.offset, each.state, each.deliveries or None, each.member or None, _when(each),
            _beginning(each.value),
        )
        for each in records
    ]  # fmt: skip
    columns = ("partition", "offset", "state", "deliveries", "member", "until", "value")
    document = [_as_json(record) for record in records]
    print_rows(as_json, document, columns, rows, f"Group {group} has no record to show.")


def _when(record: "PeekedRecord") -> str | None:
    from spark_log.text import time_of

    if record.left_ms is not None:
        return f"{record.left_ms} ms"
    return None if record.due_ms is None else time_of(record.due_ms)


def _beginning(value: bytes | None) -> str | None:
    if value is None:
        return None
    text = value[: 4 * _VALUE_MAX].decode("utf-8", "replace")
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}…"


def _as_json(record: "PeekedRecord") -> dict[str, Any]:
    texts = {name: _beginning(getattr(record, name)) for name in ("key", "value")}
    return {**vars(record), **record.partition._asdict(), **texts}
