"""The measurements of the proof page beside their peers, in one run: `make proof`. Writes docs/proof.md and its plot.

Each part is a module of its own, whose command the page names. The whole run takes less than 15 minutes on two cores.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

from benchmarks.gateway import KAFKA_FORCED, SINGLE_BAR_MS
from benchmarks.kafka_clients import GET_BARS_MS, LATENCY_BARS_MS
from benchmarks.kafka_report import ON_POSTGRESQL, OURS, Row, ratio_to_ours, read_rows
from benchmarks.kafka_spark import PARQUET, READ_TOPIC
from benchmarks.machine import describe_machine
from tests.support.postgres import PostgresServer

DOCS = Path(__file__).resolve().parents[1] / "docs"


@dataclass(frozen=True)
class Part:
    """A section of the page. `commands` are modules with their arguments; rows about the same thing become one.
    `unlike` says what is not like for like.
    """

    title: str
    text: str
    commands: Sequence[str]
    unlike: str


PARTS = (
    Part(
        "A record is durable, and a waiting consumer has it",
        """One client sends a record of 100 bytes and waits for its acknowledgement. Then a process sends one record
        after the other, with a pause of 10 ms after each acknowledgement, and a waiting consumer in another
        process compares the time in each with its clock. At last a client sends many records without waiting
        (kafka-python: a tenth of them).""",
        ("benchmarks.kafka_clients --parts get latency send --rounds 3 --gets 400 --messages 150 --sends 300000",),
        """"fsync" is a Kafka topic with `flush.messages=1`: only this acknowledges what is on the disk, as spark-log
        always does. The other Kafka topics, and those of the consumers, acknowledge what is in the page cache.
        The broker is a process that runs all the time; spark-log has none on SQLite. confluent-kafka is librdkafka, a
        client in C.""",
    ),
    Part(
        "Where the time of one record goes",
        """The stages of `send().get()`, without a coordinator beside it, and below them what the disk and the server
        take without spark-log. Then the same with a pause of 10 ms before each record: the processors sleep and their
        caches get cold, so that everything takes longer, the driver alone too. At last the way of a record, with this
        pause, to a consumer that waits in another process.""",
        ("benchmarks.one_record --sends 1000",),
        """the floors insert the same 100 bytes with the driver alone, without a topic, an offset, a producer or a
        check; they are what no client of this store can be faster than.""",
    ),
    Part(
        "A Kafka client, through a gateway",
        """One librdkafka client sends one record after the other with `acks=all` and waits for each acknowledgement:
        to a gateway, and to a Kafka broker. "Producer" is spark-log's own client on the same store, without a
        gateway.""",
        ("benchmarks.gateway --parts single --rounds 3 --gets 200",),
        """"Kafka" acknowledges what is in the page cache, "Kafka, fsync" what is on the disk. A gateway is a process
        in Python.""",
    ),
    Part(
        "The record is in the open table",
        """20 of 1,000 topics get 4 records a second each. A coordinator keeps a Delta table of each topic
        (`delta.max.lag.ms` at its default, 5 s). The age of the oldest record that a table lacks is sampled ten times a
        second: for each table, and the largest of all at each sample. The peer is what teams run today: Kafka topics,
        Spark's Kafka connector, and a query that appends to a Delta table, each micro-batch as soon as the one before
        has ended. Before that, beside the same coordinator, a client waits for the acknowledgement of each record: to a
        topic with a Delta table and to one without.""",
        (
            "benchmarks.tables --seconds 30 --tenth-seconds 0 --idle-seconds 0 --gets-seconds 10",
            "benchmarks.delta_sink --topics 20 --seconds 30",
        ),
        """the peer has one table for all 20 topics, so that its age is that of all topics, and a Spark session that
        does nothing else; spark-log writes 20 tables in one Python process. The peer's records age from `send`, those
        of spark-log from their append, a few milliseconds later. Databricks documents about 5 s for Zerobus (p50; p95
        30 s), at least once.""",
    ),
    Part(
        "Spark writes and reads columns",
        """Batches of a million keyed records of 100 bytes that cannot be compressed, in 4 partitions.""",
        ("benchmarks.kafka_spark --parts write read --records 1000000 --rounds 3",),
        """Kafka acknowledges what is in the page cache. `read_topic` reads the topic's Delta table in the JVM, and
        the records that the table lacks. The columns of `format("spark_log")` pass through a Python process,
        which those of Parquet do not.""",
    ),
    Part(
        "Spark reads files and tail together",
        """A topic of 5,000,000 records in 4 partitions: `read_topic` aggregates it without a tail, and with one.
        Then streams read two columns of all records, and after that a few new records in each trigger.""",
        ("benchmarks.union_reads --records 5000000 --rounds 3 --triggers 10",),
        """all sides are spark-log; `stream_topic` reads the files in the JVM and the tail by `format("spark_log")`.""",
    ),
    Part(
        "Spark writes typed columns, runs jobs and aggregates windows",
        """Flights as JSON with 19 fields go to a typed topic and to an untyped one. `jobs/consume.py` parses JSON of 7
        fields into Parquet files, from a topic and from Parquet files. A stream aggregates events by key in windows of
        an hour, from a topic and from its own files as Parquet.""",
        (
            "benchmarks.typed_writes --times 2 --rounds 3",
            "benchmarks.jobs --jobs consume --records 1000000 --rounds 2",
            "benchmarks.streams --records 5000000 --rounds 3",
        ),
        """Parquet has no order of records and no offsets, and the peers read files that do not change. The records
        of `format("spark_log")` pass through a Python process.""",
    ),
    Part(
        "Small durable inserts",
        """Batches of 10 rows, each a transaction, by one client. DuckLake has its catalog in the same PostgreSQL as
        spark-log; "files" is without inlining, where each insert is a Parquet file.""",
        ("benchmarks.ducklake",),
        """DuckLake is a table format with updates and deletes, and its client runs SQL. Another project,
        pg_ducklake, published 253 rows/s for this client and 1,479 rows/s for itself inside PostgreSQL, on
        another machine.""",
    ),
    Part(
        "A commit of many batches",
        """One transaction of the store appends 1,600 batches of one record over 632 partitions.""",
        ("benchmarks.writers --batches 1600 --partitions 632",),
        """Inkless reports, in pull request 751 of aiven/inkless and on another machine, 77 ms for 5 batches in each
        of 320 partitions, 85 ms for 2 in each of 640, and 208 ms for 1 in each of 1,600, in PostgreSQL and
        without the data. Here the records are in the transaction. A gateway puts at most 500 batches into one.""",
    ),
)

ONE_RECORD, TO_CONSUMER, THROUGH_GATEWAY = "one record of 100", "from send to", "one record through a gateway"
IN_TABLE, SCAN = "age of the oldest record that", "read of 7 columns"
"""How the names of some rows begin."""

SENTENCE = """acknowledged durable in <= 1 ms, seen by every reader in <= 3 ms, in the Delta table within 2 s
    (bound 5 s), exactly once, at Parquet's scan speed"""


@dataclass(frozen=True)
class Target:
    """A part of the sentence. `kept` says whether a row has it for one of spark-log's stores or readers."""

    text: str
    row: str
    ours: Sequence[str]
    kept: Callable[[Row, str], bool]


_STORES = (OURS, ON_POSTGRESQL)
_SCAN_SHARE = 0.95
TARGETS = (
    Target("acknowledged durable in <= 1 ms (p50)", ONE_RECORD, _STORES, lambda row, who: row.amounts[who] <= 0.001),
    Target(
        "seen by every reader in <= 3 ms (p50, a waiting `Consumer` in another process)",
        TO_CONSUMER,
        _STORES,
        lambda row, who: row.amounts[who] <= 0.003,
    ),
    Target(
        "in the Delta table within 2 s (p50; bound 5 s: max)",
        IN_TABLE,
        _STORES,
        lambda row, who: all(bar.kept for bar in row.bars if bar.who == who and not bar.text.startswith("p95")),
    ),
    Target(
        f"at Parquet's scan speed (>= {_SCAN_SHARE} of it)",
        SCAN,
        (READ_TOPIC, PARQUET),
        lambda row, who: row.amounts[who] * _SCAN_SHARE <= row.amounts[PARQUET],
    ),
)

FLUSHED_MS = 0.56
"""p50 of librdkafka on a broker with flush.messages=1, on the machine for which the bars in milliseconds were set."""
_FLUSHED = "confluent-kafka, fsync"
LATENCY_BARS = (
    ("`send().get()`", ONE_RECORD, OURS, GET_BARS_MS[OURS], _FLUSHED),
    ("`send().get()`, PostgreSQL", ONE_RECORD, ON_POSTGRESQL, GET_BARS_MS[ON_POSTGRESQL], _FLUSHED),
    ("send to a waiting consumer", TO_CONSUMER, OURS, LATENCY_BARS_MS[OURS], _FLUSHED),
    ("send to a waiting consumer, PostgreSQL", TO_CONSUMER, ON_POSTGRESQL, LATENCY_BARS_MS[ON_POSTGRESQL], _FLUSHED),
    ("gateway, `acks=all`", THROUGH_GATEWAY, OURS, SINGLE_BAR_MS, KAFKA_FORCED),
)
"""What, its row, whose amount, the bar of its p50 in ms, and the name of librdkafka with a flush in the same run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where to measure [the system's temporary folder]")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where to write the page [docs]")
    parser.add_argument(
        "--parts", type=int, nargs="+", choices=range(1, len(PARTS) + 1), help="only these; needs --docs"
    )
    arguments = parser.parse_args()
    if arguments.parts and arguments.docs == DOCS:
        parser.error("--parts needs --docs: the page has all parts")
    chosen = [PARTS[number - 1] for number in arguments.parts] if arguments.parts else PARTS
    began_s = time.monotonic()
    server = PostgresServer()
    server.start()
    try:
        with tempfile.TemporaryDirectory(prefix="spark-log-proof-", dir=arguments.folder) as folder:
            measured = [(part, _measure(part, server, Path(folder))) for part in chosen]
    finally:
        server.stop()
        server.remove()
    minutes = (time.monotonic() - began_s) / 60
    plot([row for _, rows in measured for row in rows], arguments.docs / "images" / "proof.svg")
    (arguments.docs / "proof.md").write_text(page(measured, minutes))
    print(f"{arguments.docs / 'proof.md'}: written after {minutes:.0f} minutes")


def _measure(part: Part, server: PostgresServer, folder: Path) -> list[Row]:
    rows: dict[str, Row] = {}
    for command in part.commands:
        print(f"{datetime.now():%H:%M:%S} {command}", flush=True)
        found = folder / "rows.json"
        options = ["--postgresql", server.create_database(), "--folder", str(folder), "--json", str(found)]
        subprocess.run([sys.executable, "-m", *command.split(), *options], check=True)
        for row in read_rows(found):
            before = rows.get(row.what, Row(row.what, {}, {}))
            rows[row.what] = Row(
                row.what, before.shown | row.shown, before.amounts | row.amounts, [*before.bars, *row.bars]
            )
    return list(rows.values())


def page(measured: Sequence[tuple[Part, Sequence[Row]]], minutes: float) -> str:
    """Return the page in Markdown."""
    all_rows = [row for _, rows in measured for row in rows]
    lines = [
        "# Proof",
        "",
        f"The sentence to make true: *{_line(SENTENCE)}.*",
        "",
        *_targets(all_rows),
        "",
        _line(
            """That records are stored exactly once is not measured but tested: see the
            [invariants](architecture/invariants.md). This page has the measurements beside the peers that a team would
            otherwise run, with what is not like for like and where spark-log loses."""
        ),
        "",
        _line(
            f"""`make proof` writes it: {datetime.now(UTC):%Y-%m-%d}, {describe_machine()}, one run of {minutes:.0f}
            minutes. All programs share the cores. spark-log runs on SQLite, and on PostgreSQL (with `fsync`, without
            autovacuum) where a table says so. A ratio is a time divided by that of spark-log: above 1 spark-log is
            faster. A command alone needs `--postgresql URL` for the part on PostgreSQL."""
        ),
        "",
        "![Times relative to spark-log](images/proof.svg)",
        "",
        "## Latency beside librdkafka with a flush",
        "",
        _line(
            f"""The bars in milliseconds were set on one machine, where librdkafka took {FLUSHED_MS} ms (p50) for a
            record on a broker with `flush.messages=1`. On another machine compare the ratios to librdkafka in the same
            run."""
        ),
        "",
        *_latency_bars(all_rows),
    ]
    for part, rows in measured:
        commands = " and ".join(f"`python -m {command}`" for command in part.commands)
        lines += ["", f"## {part.title}", "", _line(part.text), "", f"Measured by {commands}."]
        for row in rows:
            lines += ["", *_table(row)]
        lines += ["", f"Not like for like: {_line(part.unlike)}"]
    lines += ["", "## Bars that this run missed", "", *_missed(all_rows)]
    return "\n".join([*lines, "", "## Where spark-log loses", "", *_losses(all_rows), ""])


def _targets(rows: Sequence[Row]) -> Iterator[str]:
    yield "| part of the sentence | measured in this run | met |"
    yield "|---|---|---|"
    for target in TARGETS:
        for row in (row for row in rows if row.what.startswith(target.row)):
            shown = [f"{who}: {row.shown[who]}" for who in target.ours if who in row.shown]
            kept = [target.kept(row, who) for who in target.ours if who in row.shown and who.startswith(OURS)]
            yield f"| {target.text} | {'; '.join(shown)} | {', '.join('yes' if each else 'no' for each in kept)} |"
    yield "| exactly once | by tests | |"


def _latency_bars(rows: Sequence[Row]) -> Iterator[str]:
    yield "| p50 of one record | measured | bar | met | ratio to librdkafka | bar | met |"
    yield "|---|---|---|---|---|---|---|"
    for what, row_name, who, bar_ms, peer in LATENCY_BARS:
        for row in (row for row in rows if row.what.startswith(row_name) and who in row.amounts):
            peers = [
                each.amounts[peer]
                for each in rows
                if each.what.startswith((ONE_RECORD, THROUGH_GATEWAY)) and peer in each.amounts
            ]
            ratio, bar = row.amounts[who] / peers[0], bar_ms / FLUSHED_MS
            ms = 1000 * row.amounts[who]
            met = ["yes" if kept else "no" for kept in (ms <= bar_ms, ratio <= bar)]
            yield f"| {what} | {ms:.2f} ms | {bar_ms} ms | {met[0]} | {ratio:.2f} | {bar:.2f} | {met[1]} |"


def _table(row: Row) -> list[str]:
    """Return the lines of a row's table, with a column of ratios for each store of spark-log, and one for bars."""
    stores = [ours for ours in _STORES if ours in row.amounts]
    heads = [f"{name} is" for name in ("spark-log", "on PostgreSQL")[: len(stores)]] + ["bar"] * bool(row.bars)
    lines = [f"| {' | '.join([row.what, 'measured', *heads])} |", "|---|---|" + "---|" * len(heads)]
    for who, shown in row.shown.items():
        cells = [who, shown, *(ratio_to_ours(row, who, ours) for ours in stores)]
        lines.append(f"| {' | '.join(cells + [row.bars_of(who)] * bool(row.bars))} |")
    return lines


def _missed(rows: Sequence[Row]) -> list[str]:
    missed: list[str] = []
    for row in rows:
        for who, shown in row.shown.items():
            if bars := [bar.text for bar in row.bars if bar.who == who and not bar.kept]:
                missed.append(f"- {row.what}: {who}: {shown}. Missed: {'; '.join(bars)}.")
    return missed or ["None."]


def _line(text: str) -> str:
    return " ".join(text.split())


def _losses(rows: Sequence[Row]) -> list[str]:
    """Return a line for each peer that took less time than spark-log."""
    lost = [
        f"- {row.what}: {who} takes {row.amounts[who] / row.amounts[ours]:.2f} of the time of {ours}."
        for row in rows
        for ours in _STORES
        for who in row.amounts
        if ours in row.amounts and not who.startswith(OURS) and row.amounts[who] < row.amounts[ours]
    ]
    return lost or ["Nowhere in this run."]


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw a small chart for each row with a peer: the time of each competitor relative to spark-log's."""
    rows = [row for row in rows if OURS in row.amounts and not all(who.startswith(OURS) for who in row.amounts)]
    figure, axes = pyplot.subplots(
        len(rows), 1, figsize=(9, 0.7 + sum(0.5 + 0.28 * len(row.amounts) for row in rows)), layout="constrained",
        height_ratios=[1 + 0.6 * len(row.amounts) for row in rows], squeeze=False,
    )  # fmt: skip
    for axis, row in zip(axes.flat, rows, strict=True):
        names = list(row.amounts)[::-1]
        ratios = [row.amounts[name] / row.amounts[OURS] for name in names]
        bars = axis.barh(names, ratios, color=["#3367b0" if name.startswith(OURS) else "#b0b7c3" for name in names])
        axis.bar_label(bars, labels=[f" {ratio:.2f}" for ratio in ratios], fontsize=7)
        axis.axvline(1, color="#3367b0", linewidth=0.8)
        axis.set_title(row.what, fontsize=8, loc="left")
        axis.tick_params(labelsize=7)
        axis.margins(x=0.12)
    figure.suptitle("Time relative to spark-log on SQLite (less is better)", fontsize=9)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
