"""The command `spark-log top`, which shows a live view of the cluster."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from spark_log.cli.output import WIDTH_OF_PIPES, bytes_of, cell, duration_of
from spark_log.cli.shared_options import Cluster_, open_cluster
from spark_log.errors import SparkLogError
from spark_log.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spark_log.facts.metrics.cluster_snapshot import ClusterSnapshot

_ROWS = 20
_LEFT = ("topic", "group", "state")


def top(
    cluster: Cluster_,
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two views.")] = 2.0,
    count: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End after N views. [default: when stopped]")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Topics and groups that are shown.")] = _ROWS,
) -> None:
    """Show live activity: topics by records per second, groups by lag, brokers, and partitions with problems.

    Ctrl-C stops it. Without a terminal, the views are printed one after another.

    **Examples**

    - `spark-log top`
    - `spark-log top --count 1 | head`
    """
    from rich.console import Console
    from rich.live import Live

    from spark_log.facts.metrics.cluster_snapshot import read_cluster
    from spark_log.process import Stop

    stop = Stop().on_signals()
    console = Console(width=None if sys.stdout.isatty() else WIDTH_OF_PIPES)
    with open_cluster(cluster) as opened, Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        address = str(opened.store.address)
        before = read_cluster(opened)
        shown = 0
        while (count is None or shown < count) and not stop.wait(interval):
            try:
                now = read_cluster(opened)
                view = _view(address, before, now, rows)
                before = now
            except SparkLogError as error:  # the store may become available again
                view = cell(str(error))
            shown += 1
            if console.is_terminal:
                live.update(view, refresh=True)
            else:
                console.print(view)


def _view(address: str, before: "ClusterSnapshot", now: "ClusterSnapshot", rows: int) -> "RenderableType":
    from rich.console import Group

    from spark_log.facts.metrics.activity import group_activity, topic_activity

    topics, groups = topic_activity(before, now), group_activity(before, now)
    return Group(
        _summary(address, now, sum(topic.rate for topic in topics)),
        _table(
            ("topic", "partitions", "records/s", "records", "tail", "Delta lag", "state"),
            [
                (
                    one.topic, str(one.partitions), f"{one.rate:,.0f}", f"{one.records:,}", bytes_of(one.tail_bytes),
                    duration_of(int(one.delta_lag_s * 1000)) if one.delta_lag_s else "",
                    _state(one.offline, one.under_replicated),
                )
                for one in topics[:rows]
            ],
            len(topics) - rows,
        ),
        _table(
            ("group", "members", "records/s", "lag", "lag, time"),
            [
                (
                    one.group, str(one.members), f"{one.rate:,.0f}", f"{one.lag:,}",
                    duration_of(int(one.lag_s * 1000)) if one.lag_s else "",
                )
                for one in groups[:rows]
            ],
            len(groups) - rows,
        ),
    )  # fmt: skip


def _summary(address: str, now: "ClusterSnapshot", rate: float) -> "RenderableType":
    from rich.text import Text

    alive = sum(broker.alive for broker in now.brokers)
    offline = sum(partition.is_offline for partition in now.partitions)
    behind = sum(partition.is_under_replicated for partition in now.partitions)
    parts = [
        f"brokers {alive}/{len(now.brokers)}",
        f"gateways {now.gateways}",
        f"topics {len(now.topics)}",
        f"partitions {len(now.partitions)}",
        f"{rate:,.0f} records/s",
        f"open transactions {now.open_transactions}",
        f"controller {now.controller or 'none'}",
    ]
    trouble = _state(offline, behind)
    lines = Text(f"{printable(address)}\n", style="bold")
    lines.append(" · ".join(parts), style="not bold")
    if trouble:
        lines.append(f"\n{trouble}", style="bold red")
    return lines


def _state(offline: int, under_replicated: int) -> str:
    found = [(offline, "offline"), (under_replicated, "under-replicated")]
    return ", ".join(f"{number} {name}" for number, name in found if number)


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]], omitted: int) -> "RenderableType":
    from rich.table import Table

    caption = f"and {omitted} more" if omitted > 0 else None
    table = Table(header_style="bold", expand=False, caption=caption, caption_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in _LEFT else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(cell, row))
    return table
