"""The command `spark-log maintenance`, which runs the coordinator's maintenance tasks now."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_log.cli.output import bytes_of, count_of, note, print_table, say
from spark_log.cli.shared_options import Cluster_, open_cluster, topics_option
from spark_log.errors import SparkLogError, UnknownTopicOrPartitionError, redact

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spark_log.cluster.cluster import Cluster
    from spark_log.maintenance import Report


def maintenance(
    cluster: Cluster_,
    task: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK", help="Task to run. [default: all but columns]", show_default=False),
    ] = None,
    topic: Annotated[list[str] | None, topics_option("Only this topic; repeatable.")] = None,
    now: Annotated[bool, typer.Option("--now", help="Seal every inline tail, whatever its age.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; show what would be done and deleted, and why.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each report.")] = False,
) -> None:
    """Run maintenance now and report it. A coordinator does the same on a schedule; both may run at the same time.

    **Tasks**, in the order in which they run

    - `flush`: force acknowledged records to disk (flush.ms)
    - `seal`: write inline tails older than delta.max.lag.ms or segment.ms to files, and list these in the Delta tables
    - `transactions`: abort transactions open for longer than transaction.timeout.ms; end their parts in data stores
    - `retention`: drop records that retention.ms and retention.bytes no longer keep
    - `compact`: keep the last value of every key (cleanup.policy=compact) in partitions that are not too large
    - `merge`: merge small segments into segments of segment.bytes
    - `delta`: update Delta tables, write their checkpoints, delete their expired log files
    - `files`: delete retired files, deleted topics, and files that the metadata does not name
    - `expire`: delete the offsets of empty groups, and inactive producers and transactional ids
    - `columns`: add the present typed columns (of keys and values) to files that lack them; runs only if it is named

    **Examples**

    - `spark-log maintenance`
    - `spark-log maintenance seal merge --topic events`
    - `spark-log maintenance retention --dry-run`
    - `spark-log maintenance columns --topic orders`
    - `spark-log maintenance seal --now` (afterwards every Delta table has all records)
    """
    from spark_log.maintenance import TASKS

    known = [each.name for each in TASKS]
    for name in task or ():
        if name not in known:
            raise typer.BadParameter(f"{name!r}: expected {', '.join(known)}", param_hint="TASK")
    wanted = task or [each.name for each in TASKS if each.every_ms is not None]
    chosen = [name for name in known if name in wanted]
    reports: list[Report] = []
    failures: list[str] = []
    with open_cluster(cluster) as opened, _spinner() as spinner:
        for report in _run(opened, chosen, topic, now, dry_run, spinner, failures):
            reports.append(report)
            if as_json:
                typer.echo(json.dumps(asdict(report)))
        waiting = _records_not_in_delta(opened, topic) if "seal" in chosen and not (now or as_json) else 0
    if not as_json:
        _print(reports, dry_run)
    if waiting:
        verb = "is" if waiting == 1 else "are"
        say(
            f"{count_of(waiting, 'record')} {verb} not in the Delta tables yet: delta.max.lag.ms has not passed."
            " `spark-log maintenance seal --now` does not wait for it."
        )
    for text in failures:
        note(f"spark-log: {text}")
    if failures:
        raise typer.Exit(1)


def _run(
    cluster: "Cluster",
    names: Sequence[str],
    topics: Sequence[str] | None,
    now: bool,
    dry_run: bool,
    spinner: Any,
    failures: list[str],
) -> "Iterator[Report]":
    from spark_log.maintenance import run_tasks as run

    for name in names:
        if spinner is not None:
            spinner.update(f"{name} …")
        try:
            yield from run(cluster, [name], topics=topics, now=now, dry_run=dry_run)
        except UnknownTopicOrPartitionError:
            raise  # no task has run
        except (SparkLogError, OSError) as error:
            failures.append(f"{name}: {' '.join(redact(str(error)).split())}")


def _records_not_in_delta(cluster: "Cluster", names: Sequence[str] | None) -> int:
    """Return the number of records of these topics that are not in their Delta tables.

    A topic has a table in each log dir. Its number is that of the table that lacks most records.
    """
    from spark_log.cluster.each_store import ask_stores
    from spark_log.cluster.topics import find_topics
    from spark_log.tables.lag_measurement import delta_lags

    def count(connection: "Connection") -> int:
        ids = [topic.topic_id for topic in find_topics(connection, names or None).values()]
        most: dict[int, int] = {}
        for (topic_id, _), lag in delta_lags(connection, ids).items():
            most[topic_id] = max(lag.records, most.get(topic_id, 0))
        return sum(most.values())

    return sum(ask_stores(cluster, lambda each: each.store.read(count)).results.values())


def _spinner() -> AbstractContextManager[Any]:
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("")


def _print(reports: "Sequence[Report]", dry_run: bool) -> None:
    if not reports:
        say("Nothing to do.")
        return
    print_table(
        "Dry run: nothing was changed. A run would do this:" if dry_run else None,
        ("task", "topic", "partitions", "files", "bytes", "records", "notes"),
        [
            (
                report.task,
                report.topic,
                report.partitions or None,
                _from_to(report, "files"),
                _from_to(report, "bytes"),
                _from_to(report, "records"),
                report.notes,
            )
            for report in reports
        ],
    )


def _from_to(report: "Report", what: str) -> str | None:
    before, after = getattr(report.before, what), getattr(report.after, what)
    if not (report.before or report.after):
        return None
    show = bytes_of if what == "bytes" else "{:,}".format
    return f"{show(before)} -> {show(after)}"
