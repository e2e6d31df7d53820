"""The command `spark-log consume`, which prints records of a topic on stdout."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_log.cli import completion
from spark_log.cli.output import count_of, json_of, note
from spark_log.cli.records.record_lines import show_json, show_text
from spark_log.cli.shared_options import Cluster_, TopicName, open_cluster
from spark_log.text import printable

if TYPE_CHECKING:
    from spark_log.groups.group_operations import ResetTo


MaxMessages = Annotated[
    int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after this number of records.")
]
Values = Annotated[bool, typer.Option("--values", help="Print only the bytes of the values, one per line.")]


class IsolationLevel(StrEnum):
    read_committed = "read_committed"
    read_uncommitted = "read_uncommitted"


def consume(
    topic: TopicName,
    cluster: Cluster_,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="earliest, latest, an offset, -N for the last N of each partition, a time (2026-01-31T12:00:00Z) or "
            "@milliseconds.",
        ),
    ] = "earliest",
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable.")
    ] = None,
    max_messages: MaxMessages = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more at the end; Ctrl-C stops.")] = False,
    idle: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="With --follow: stop after this time without a record."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Read as a member of this group: from its committed offsets, and commit.",
            autocompletion=completion.groups,
        ),
    ] = None,
    isolation_level: Annotated[
        IsolationLevel,
        typer.Option(help="Both levels read committed records only, and neither waits for an open transaction."),
    ] = IsolationLevel.read_committed,
    values: Values = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per record, as `produce --format json` reads it.")
    ] = False,
) -> None:
    """Print the records that a topic has now, and with --follow also the records that arrive later.

    Records of a partition are printed in order. Bytes that are not UTF-8 are printed as base64.

    **Examples**

    - `spark-log consume events --from -10`
    - `spark-log consume events --from 2026-01-31T12:00:00Z --json | jq .value`
    - `spark-log consume events --from latest --follow`
    - `spark-log consume events --group readers --follow`
    """
    from spark_log.cli.topics.topic_reader import parse_position

    try:
        position = parse_position(from_)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from None
    if values and as_json:
        raise typer.BadParameter("--values and --json exclude each other")
    if idle is not None and not follow:
        raise typer.BadParameter("--idle requires --follow")

    if group is not None:
        _consume_as_member(topic, cluster, group, position, partition, max_messages, follow, idle, values, as_json)
        return

    from spark_log.cli.topics.topic_reader import TopicReader
    from spark_log.log.reader import LogReader
    from spark_log.metadata.store import DEFAULT_TIMEOUT_MS

    with open_cluster(cluster) as opened:
        if follow:
            opened.store.read_timeout_ms = DEFAULT_TIMEOUT_MS  # a failover does not end the command
        log = LogReader(opened)
        reader = TopicReader(log, log.find_topic(topic), sorted(set(partition)) if partition else None)
        reader.seek(position)
        batches = reader.follow(idle) if follow else reader.read_available()
        with closing(log):
            count = _print_all(rows_of(batches, max_messages), values, as_json)
    for lost_partition, lost in reader.lost.items():
        note(f"{topic}-{lost_partition.partition}: {count_of(lost, 'offset')} deleted before they could be read")
    if not values and not as_json:
        note(f"{count_of(count, 'record')}.")


def _consume_as_member(
    topic: str,
    cluster: str,
    group: str,
    position: "ResetTo",
    partitions: Sequence[int] | None,
    max_messages: int | None,
    follow: bool,
    idle: float | None,
    values: bool,
    as_json: bool,
) -> None:
    from spark_log.groups.group_operations import Earliest, Latest

    if partitions:
        raise typer.BadParameter("--partition and --group exclude each other: the group assigns the partitions")
    if not isinstance(position, Earliest | Latest):
        raise typer.BadParameter(
            "with --group it is earliest or latest: the start of a partition without a committed offset",
            param_hint="--from",
        )

    from spark_log.cli.topics.topic_reader import member_batches
    from spark_log.clients.consume.consumer import Consumer
    from spark_log.cluster.topics import find_topic
    from spark_log.groups.group_names import check_group_id

    check_group_id(group)
    with open_cluster(cluster) as opened:
        opened.store.read(lambda connection: find_topic(connection, topic))
    reset = "earliest" if isinstance(position, Earliest) else "latest"
    consumer = Consumer(
        topic,
        cluster=cluster,
        group_id=group,
        client_id="spark-log-consume",
        auto_offset_reset=reset,
        enable_auto_commit=False,
        allow_auto_create_topics=False,
    )
    with closing(consumer):
        count = _print_all(rows_of(member_batches(consumer, max_messages, follow, idle), None), values, as_json)
    if not values and not as_json:
        note(f"{count_of(count, 'record')}.")


def _print_all(rows: Iterable[Mapping[str, Any]], values: bool, as_json: bool) -> int:
    """Print the rows until Ctrl-C, and return their number."""
    count = 0
    with suppress(KeyboardInterrupt):
        for row in rows:
            print_row(row, values, as_json)
            count += 1
    sys.stdout.flush()
    return count


def rows_of(batches: Iterable[Any], limit: int | None) -> Iterator[Mapping[str, Any]]:
    """Yield rows of the read schema, at most `limit`, with `timestamp` in milliseconds."""
    import pyarrow as pa

    left = limit
    for batch in batches:
        rows = batch if left is None else batch.slice(0, left)
        at = rows.schema.get_field_index("timestamp")
        milliseconds = rows.column(at).cast(pa.int64())
        for row, micros in zip(rows.drop_columns(["timestamp"]).to_pylist(), milliseconds.to_pylist(), strict=True):
            yield {**row, "timestamp": micros // 1000}
        sys.stdout.flush()
        if left is not None:
            left -= rows.num_rows
            if left == 0:
                return


def print_row(row: Mapping[str, Any], values: bool, as_json: bool) -> None:
    """Print a row of `rows_of` on stdout: as a line of text, as JSON, or only the bytes of its value."""
    if values and sys.stdout.isatty():
        text = (row["value"] or b"").decode(errors="backslashreplace")
        sys.stdout.write(printable(text, keep="\n\t") + "\n")
    elif values:
        sys.stdout.buffer.write((row["value"] or b"") + b"\n")
    elif as_json:
        sys.stdout.write(json_of(show_json(row)) + "\n")
    else:
        moment = datetime.fromtimestamp(row["timestamp"] / 1000, UTC).isoformat(timespec="milliseconds")
        place = f"{row['topic']}-{row['partition']}@{row['offset']}"
        headers = " ".join(f"{printable(h['key'])}={show_text(h['value'])}" for h in row["headers"] or ())
        line = f"{place}  {moment.replace('+00:00', 'Z')}  {show_text(row['key'])}  {show_text(row['value'])}"
        sys.stdout.write(f"{line}  [{headers}]\n" if headers else f"{line}\n")
