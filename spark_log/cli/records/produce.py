"""The command `spark-log produce`, which sends lines of stdin or of a file to a topic."""

import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from spark_log.cli.output import bytes_of, count_of, note, print_json, say
from spark_log.cli.records.record_lines import BATCH_BYTES, LineFormat, Record, line_batches, parse_json
from spark_log.cli.shared_options import Cluster_, Json, TopicName, open_cluster, parse_headers
from spark_log.config.values import INT32_MAX
from spark_log.text import rate_of

if TYPE_CHECKING:
    from spark_log.cli.records.record_sender import RecordSender
    from spark_log.clients.produce.producer import Producer

RECORDS_PER_BATCH_MAX = 100_000
"""The maximum number of records of a batch. A batch of short lines is many Python objects; the limit keeps their memory
below a few hundred MB.
"""

BUFFER_BYTES = 8 * BATCH_BYTES
"""The memory of the producer. It is so large that the producer does not split a batch into smaller files."""

_INTERRUPTED = 130
"""The exit code by which shells know that Ctrl-C has ended a command."""


class Format(StrEnum):
    lines = "lines"
    json = "json"


class AcksName(StrEnum):
    leader = "1"
    all = "all"


def produce(
    topic: TopicName,
    cluster: Cluster_,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read this file, not stdin.")
    ] = None,
    format_: Annotated[
        Format,
        typer.Option(
            "--format", help="lines: one value per line. json: one object per line, as `consume --json` prints."
        ),
    ] = Format.lines,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="Separates key and value in a line.")
    ] = None,
    null_marker: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A key or value with this text is null (a tombstone).")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Send to this partition. [default: by the key]")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=TEXT", help="A header of every record; repeatable."),
    ] = None,
    acks: Annotated[
        AcksName, typer.Option(help="Replicas that must have a record: 1 (the leader) or all (in-sync replicas).")
    ] = AcksName.all,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Send all input in one transaction: its records become visible when the input ends, or none does. It "
            "must end within 15 minutes. The open transaction of an earlier producer with this id is aborted.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Send lines to a topic, from stdin or a file.

    A record with a key goes to the partition that Kafka's clients would choose. Records without a key go to the
    partitions in turn. A line is acknowledged when it is durable. Slow input is sent line by line, and fast input in
    large batches. The exit code is 130 if Ctrl-C stops the command before the end of a file or pipe.

    **Examples**

    - `echo hello | spark-log produce events`
    - `spark-log produce users -f users.txt --key-separator :`
    - `spark-log produce users -f users.txt --transactional-id load-users`
    - `spark-log consume a --json | spark-log produce b --format json`
    """
    if format_ is Format.json and (key_separator is not None or null_marker is not None):
        raise typer.BadParameter("--key-separator and --null-marker are for --format lines")
    if key_separator == "":
        raise typer.BadParameter("must not be empty", param_hint="--key-separator")
    if transactional_id is not None and acks is AcksName.leader:
        raise typer.BadParameter("a transaction needs --acks all", param_hint="--transactional-id")
    headers = parse_headers(header or (), "--header")
    plain = LineFormat(*(None if text is None else text.encode() for text in (key_separator, null_marker)))
    parse = parse_json if format_ is Format.json else plain.parse

    from spark_log import clock
    from spark_log.cli.records.record_sender import RecordSender, warnings_as_notes

    producer = _producer(cluster, topic, acks, transactional_id)
    sender = RecordSender(producer, topic, partition, headers)
    started = clock.monotonic_s()
    typed = file is None and sys.stdin.isatty()
    try:
        with warnings_as_notes(), _open(file) as source, _Progress(file) as progress:
            for records, size in _records(source, parse):
                sender.send(records)
                progress.advance(size, sender.records)
            sender.commit()
    except KeyboardInterrupt:
        if transactional_id is not None:
            note("Stopped: the transaction is aborted.")
            raise typer.Exit(1) from None
        note("Stopped.")
        if not typed:  # for typed input, Ctrl-C is a normal end
            raise typer.Exit(_INTERRUPTED) from None
    finally:
        sender.close()
        _summarise(topic, sender, clock.monotonic_s() - started, as_json)


def _producer(cluster: str, topic: str, acks: AcksName, transactional_id: str | None) -> "Producer":
    """Open a producer. Raises UnknownTopicOrPartitionError, and a usage error for an invalid transactional id."""
    from kafka.errors import KafkaConfigurationError

    from spark_log.clients.produce.producer import Producer
    from spark_log.cluster.topics import find_topic

    with open_cluster(cluster) as opened:
        opened.store.read(lambda connection: find_topic(connection, topic))
        settings: dict[str, Any] = {"acks": 1, "enable_idempotence": False} if acks is AcksName.leader else {}
        if transactional_id is not None:
            longest_ms = opened.store.settings.transaction_max_timeout_ms
            settings = {"transactional_id": transactional_id, "transaction_timeout_ms": longest_ms}
    try:
        return Producer(
            cluster=cluster,
            client_id="spark-log-produce",
            allow_auto_create_topics=False,
            batch_size=1,  # so each record without a key goes to the next partition
            buffer_memory=BUFFER_BYTES,
            max_request_size=INT32_MAX,  # only the topic's max.message.bytes limits a record
            **settings,
        )
    except KafkaConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--transactional-id") from None


def _records(source: BinaryIO, parse: Callable[[bytes, int], Record]) -> Iterator[tuple[list[Record], int]]:
    """Yield batches of records, each with the number of its bytes in the input."""
    number = 0
    for lines in line_batches(source):
        for first in range(0, len(lines), RECORDS_PER_BATCH_MAX):
            some = lines[first : first + RECORDS_PER_BATCH_MAX]
            yield [parse(line, number + at) for at, line in enumerate(some, 1)], sum(map(len, some)) + len(some)
            number += len(some)


def _open(file: Path | None) -> BinaryIO:
    return open(file, "rb") if file else typer.get_binary_stream("stdin")


def _summarise(topic: str, sender: "RecordSender", seconds: float, as_json: bool) -> None:
    if as_json:
        facts = {"topic": topic, "records": sender.records, "bytes": sender.bytes, "seconds": round(seconds, 3)}
        print_json({**facts, "end_offsets": {str(number): end for number, end in sorted(sender.ends.items())}})
        return
    ends = ", ".join(f"{topic}-{partition} ends at {end:,}" for partition, end in sorted(sender.ends.items())[:8])
    rate = rate_of(sender.records, seconds)
    say(
        f"Sent {count_of(sender.records, 'record')} ({bytes_of(sender.bytes)}) in {seconds:.1f} s{rate}. {ends}".strip()
    )


class _Progress:
    """Shows progress on stderr if that is a terminal: a bar for a file, or a count if the size is not known."""

    def __init__(self, file: Path | None) -> None:
        self._bar: Any = None
        self._total = file.stat().st_size if file else None
        # typed input is already visible on the terminal
        self._wanted = sys.stderr.isatty() and not (file is None and sys.stdin.isatty())

    def __enter__(self) -> "_Progress":
        if self._wanted:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("sending", total=self._total)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, size: int, records: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, advance=size, description=count_of(records, "record"))
