"""The commands `spark-log share consume` and `spark-log share redrive`, which read the records of queues."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_log import clock
from spark_log.cli import completion
from spark_log.cli.output import count_of, json_of, note, print_json, print_table, say
from spark_log.cli.records.consume import MaxMessages, Values, print_row, rows_of
from spark_log.cli.records.record_lines import show_json
from spark_log.cli.shared_options import Cluster_, Json, TopicNames, open_cluster
from spark_log.spark.jobs.options.arguments import usage_error

if TYPE_CHECKING:
    from spark_log.spark.streams.redrive import Redriven

_POLL_MS = 500
_POLL_RECORDS = 500


def consume(
    topics: TopicNames,
    cluster: Cluster_,
    group: Annotated[
        str,
        typer.Option("--group", "-g", help="The share group.", autocompletion=completion.groups, show_default=False),
    ],
    release: Annotated[
        bool, typer.Option("--release", help="Release the records, so that they are delivered again.")
    ] = False,
    reject: Annotated[
        bool, typer.Option("--reject", help="Reject the records: they become dead letters, if the group has a topic.")
    ] = False,
    max_messages: MaxMessages = None,
    timeout_ms: Annotated[
        int | None, typer.Option("--timeout-ms", min=0, help="Stop after this time without a record.")
    ] = None,
    values: Values = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per record, with its delivery_count.")
    ] = False,
) -> None:
    """Print records as a member of a share group, and accept them, until Ctrl-C.

    Records are acknowledged after they are printed. A new group begins with records that arrive from now on, unless its
    config share.auto.offset.reset has another value.

    **Examples**

    - `spark-log share consume jobs --group workers`
    - `spark-log share consume jobs --group workers --max-messages 1 --reject`
    - `spark-log share consume jobs mails --group workers --timeout-ms 5000 --json`
    """
    if release and reject:
        raise typer.BadParameter("--release and --reject exclude each other")
    if values and as_json:
        raise typer.BadParameter("--values and --json exclude each other")

    from spark_log.clients.consume.share_consumer import AcknowledgeType, ShareConsumer
    from spark_log.cluster.topics import find_topic
    from spark_log.groups.group_names import check_group_id

    check_group_id(group)
    with open_cluster(cluster) as opened:
        opened.store.read(lambda connection: [find_topic(connection, topic) for topic in topics])
    kind = AcknowledgeType.ACCEPT
    if release or reject:
        kind = AcknowledgeType.RELEASE if release else AcknowledgeType.REJECT
    count = 0
    with ShareConsumer(
        *topics, cluster=cluster, group_id=group, client_id="spark-log-share-consume",
        share_acknowledgement_mode="explicit", share_acquire_mode="record_limit", max_poll_records=_POLL_RECORDS,
    ) as consumer:  # fmt: skip
        try:
            for table in _tables(consumer, max_messages, timeout_ms):
                for row in rows_of(table.to_batches(), None):
                    _print(row, values, as_json)
                    count += 1
                sys.stdout.flush()
                consumer.acknowledge(table, kind)
        except KeyboardInterrupt:
            pass
    if not values and not as_json:
        note(f"{count_of(count, 'record')}.")


def _print(row: Mapping[str, Any], values: bool, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json_of({**show_json(row), "delivery_count": row["delivery_count"]}) + "\n")
    else:
        print_row(row, values, False)


def _tables(consumer: Any, limit: int | None, timeout_ms: int | None) -> Iterator[Any]:
    """Yield the records of each poll. Commit their acknowledgements when the next records are requested."""
    left, quiet_since_s = limit, clock.monotonic_s()
    while left is None or left > 0:
        polled = consumer.poll_arrow(
            _POLL_MS if timeout_ms is None else min(_POLL_MS, timeout_ms),
            max_records=_POLL_RECORDS if left is None else min(_POLL_RECORDS, left),
        )
        for table in polled.values():
            left = None if left is None else left - table.num_rows
            yield table
        for partition, error in consumer.commit_sync().items():
            if error is not None:
                note(f"{partition.topic}-{partition.partition}: not acknowledged, and delivered again: {error}")
        if polled:
            quiet_since_s = clock.monotonic_s()
        elif timeout_ms is not None and (clock.monotonic_s() - quiet_since_s) * 1000 >= timeout_ms:
            return


def redrive(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="A dead letter topic.", show_default=False, autocompletion=completion.topics
        ),
    ],
    cluster: Cluster_,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TOPIC",
            help="Topic of the copies. [default: the topic of each record]",
            autocompletion=completion.topics,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Group that remembers which letters are copied. [default: redrive-TOPIC]"),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Copy at most this number.")] = None,
    skip_missing: Annotated[
        bool,
        typer.Option(
            "--skip-missing",
            help="Skip letters whose record or topic is gone, and records that are no letters; never copy them.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be copied.")] = False,
    as_json: Json = False,
) -> None:
    """Copy dead letters back to the topics of their records, each once, however often the command runs or is killed.

    All readers of those topics get the copies. The headers of dead letters are removed. If a letter has no copy of its
    record, the record is read from its topic. Letters that arrive after the start are left for the next run.

    **Examples**

    - `spark-log share redrive dlq.jobs --dry-run`
    - `spark-log share redrive dlq.jobs`
    - `spark-log share redrive dlq.jobs --to jobs-again --limit 100`
    """
    if to == topic:
        raise usage_error("--to", "the letters would be copied to their own topic")

    from spark_log.clients.admin.audit import local_user, recorded
    from spark_log.spark.streams.redrive import Redrive

    with (
        open_cluster(cluster) as opened,
        Redrive(opened, topic, to=to, group=group, limit=limit, skip_missing=skip_missing) as letters,
    ):
        if dry_run:
            redriven: Redriven = letters.preview()
        else:
            parameters = {"to": to, "group": letters.group, "limit": limit, "skip_missing": skip_missing}
            with recorded(opened, local_user(), "RedriveDeadLetters", f"topic {topic}", parameters, "cli"):
                redriven = letters.run(_report)
    if as_json:
        print_json({"copied": dict(redriven.copied), "missing": redriven.missing, "dry_run": dry_run})
        return
    _print_copies(redriven.copied)
    copied = count_of(redriven.copied.total(), "letter")
    gone = f", {count_of(redriven.missing, 'letter')} without a record" if redriven.missing else ""
    say(f"{'Would copy' if dry_run else 'Copied'} {copied}{gone}.")


def _print_copies(copied: Counter[str]) -> None:
    if copied:
        print_table(None, ("topic", "letters"), sorted(copied.items()))


def _report(redriven: "Redriven") -> None:
    if sys.stderr.isatty():
        note(f"{count_of(redriven.copied.total(), 'letter')} copied.")
