"""`spark-log topic bad-records`: the records whose keys or values cannot be decoded."""

import base64
import json
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_log.cli import completion
from spark_log.cli.output import count_of, print_table, say
from spark_log.cli.shared_options import Cluster_, Json, TopicName

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_BYTES = 60


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
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Show at most so many; 0: all.")] = 20,
    as_json: Json = False,
) -> None:
    """Show the records of a typed topic whose keys or values cannot be decoded: offset, reason and bytes.

    **Examples**

    - `spark-log topic bad-records orders`
    - `spark-log topic bad-records orders --to dlq.orders`
    """
    from spark_log.cluster.cluster import Cluster
    from spark_log.log.bad_records import bad_records as find
    from spark_log.log.bad_records import reasons
    from spark_log.log.reader import LogReader

    with Cluster.open(cluster) as opened:
        log = LogReader(opened)
        try:
            found = find(log, log.find_topic(name))
            if to is not None:
                say(f"Copied {count_of(_copy(cluster, name, found, to), 'record')} to {to}.")
                return
            shown = [row for table in islice(found, limit or None) for row in table.to_pylist()]
            more = limit and next(found, None) is not None
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
        if more:
            say(f"There are more than {limit}: --limit 0 shows all.")
    else:
        say(f"Every record of {name} can be decoded.")


def _copy(cluster: str, name: str, found: Any, to: str) -> int:
    from spark_log.log.bad_records import dead_letters
    from spark_log.produce.producer import Producer

    count = 0
    with Producer(cluster=cluster) as producer:
        for bad in found:
            letters: pa.Table = dead_letters(name, bad)
            producer.send_table(to, letters)
            count += letters.num_rows
        producer.flush()
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
