"""The command `spark-log topic bad-records`, which shows the records whose keys or values cannot be decoded."""

import base64
import json
from collections import Counter, deque
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_log.cli import completion
from spark_log.cli.output import count_of, print_table, say
from spark_log.cli.shared_options import Cluster_, Json, TopicName, open_cluster

if TYPE_CHECKING:
    from spark_log.clients.produce.future import TableFuture
    from spark_log.cluster.topics import Topic
    from spark_log.log.reader import LogReader

_SHOWN_BYTES = 60
_SHOWN_REASONS = 20
_AT_ONCE = 1_000
"""The maximum number of copies without an acknowledgement."""


def bad_records(
    name: TopicName,
    cluster: Cluster_,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TOPIC",
            help="Copy all of them to this topic, with the reasons as headers.",
            autocompletion=completion.topics,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Show at most this many; 0: all.")] = 20,
    as_json: Json = False,
) -> None:
    """Show the records of a typed topic whose keys or values cannot be decoded, with offset, reason and bytes. Also
    show the number of records for each reason.

    **Examples**

    - `spark-log topic bad-records orders`
    - `spark-log topic bad-records orders --to dlq.orders`
    """
    from spark_log.log.bad_record_listing import bad_rows, read_bad_record, reasons
    from spark_log.log.reader import LogReader

    counts: Counter[tuple[str, str]] = Counter()
    shown: list[dict[str, Any]] = []
    records = 0
    with open_cluster(cluster) as opened:
        log = LogReader(opened)
        try:
            topic = log.find_topic(name)
            if to is not None:
                say(f"Copied {count_of(_copy(cluster, log, topic, to), 'record')} to {to}.")
                return
            for row in bad_rows(log, topic):
                records += 1
                counts.update(reasons(row).items())
                if not limit or records <= limit:
                    shown += read_bad_record(log, topic, row).to_pylist()
                elif as_json:
                    break
        finally:
            log.close()
    if as_json:
        for row in shown:
            for source, reason in reasons(row).items():
                typer.echo(json.dumps(_as_json(row, source, reason)))
    elif shown:
        rows = [
            (row["partition"], row["offset"], source, reason, _short(row[source]))
            for row in shown
            for source, reason in reasons(row).items()
        ]
        print_table(None, ("partition", "offset", "part", "reason", "bytes"), rows)
        if records > len(shown):
            say(f"These are {len(shown):,} of {count_of(records, 'record')}: --limit 0 shows all.")
        most = counts.most_common(_SHOWN_REASONS)
        print_table(None, ("part", "reason", "records"), [(*reason, count) for reason, count in most])
        if len(counts) > len(most):
            say(f"There are {count_of(len(counts) - len(most), 'other reason')}.")
    else:
        say(f"Every record of {name} can be decoded.")


def _copy(cluster: str, log: "LogReader", topic: "Topic", to: str) -> int:
    from spark_log.clients.produce.producer import Producer
    from spark_log.log.bad_record_listing import bad_rows, dead_letters, read_bad_record

    count = 0
    futures: deque[TableFuture] = deque()
    with Producer(cluster=cluster) as producer:
        for row in bad_rows(log, topic):
            futures.append(producer.send_table(to, dead_letters(topic.name, read_bad_record(log, topic, row))))
            count += 1
            if len(futures) > _AT_ONCE:
                futures.popleft().get()
        for future in futures:
            future.get()
    return count


def _short(value: bytes) -> str:
    text = repr(value[:_SHOWN_BYTES])[2:-1]
    return text if len(value) <= _SHOWN_BYTES else f"{text}… ({len(value)} bytes)"


def _as_json(row: dict[str, Any], source: str, reason: str) -> dict[str, Any]:
    key, value = (None if row[name] is None else base64.b64encode(row[name]).decode() for name in ("key", "value"))
    return {
        "partition": row["partition"], "offset": row["offset"], "part": source, "reason": reason,
        "key_base64": key, "value_base64": value,
    }  # fmt: skip
