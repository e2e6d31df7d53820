"""The measurements of the proof page beside their peers, in one run: `make proof`. Writes docs/proof.md and its plot.

Each part is a module of its own, whose command the page names. The whole run takes about ten minutes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

from benchmarks.kafka_report import OURS, Row, ratio_to_ours
from benchmarks.machine import describe_machine
from tests.support.postgres import PostgresServer

ON_POSTGRESQL = f"{OURS}, PostgreSQL"
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
        process compares the time in each with its clock.""",
        ("benchmarks.kafka_clients --parts get latency --rounds 3 --gets 400 --messages 150",),
        """"fsync" is a Kafka topic with `flush.messages=1`: only this acknowledges what is on the disk, as spark-log
        always does. The other Kafka topics, and those of the consumers, acknowledge what is in the page cache.
        The broker is a process that runs all the time; spark-log has none on SQLite. confluent-kafka is a client
        in C.""",
    ),
    Part(
        "The record is in the open table",
        """20 of 200 topics get 4 records a second each. A coordinator keeps a Delta table of each topic
        (`delta.max.lag.ms` at its default, 5 s). The peer is what teams run today: Kafka topics, Spark's Kafka
        connector, and a query that appends to a Delta table, each micro-batch as soon as the one before has
        ended.""",
        (
            "benchmarks.tables --topics 200 --active 20 --seconds 45 --idle-seconds 0 --gets-seconds 0",
            "benchmarks.delta_sink --topics 20 --seconds 45",
        ),
        """the peer has one table for all 20 topics, and a Spark session that does nothing else; spark-log writes 20
        tables in one Python process. The peer's records age from `send`, those of spark-log from their append, a
        few milliseconds later. Databricks documents about 5 s for Zerobus.""",
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
        for each in json.loads(found.read_text()):
            row = Row(**each)
            before = rows.get(row.what, Row(row.what, {}, {}))
            rows[row.what] = Row(row.what, {**before.shown, **row.shown}, {**before.amounts, **row.amounts})
    return list(rows.values())


def page(measured: Sequence[tuple[Part, Sequence[Row]]], minutes: float) -> str:
    """Return the page in Markdown."""
    lines = [
        "# Proof",
        "",
        _line(
            """How soon is a record durable, read by a waiting consumer, and in the open table, and how fast does Spark
            write and read? This page has the measurements beside the peers that a team would otherwise run, with
            what is not like for like and where spark-log loses. That records are stored exactly once is a matter of
            tests: see the [invariants](architecture/invariants.md)."""
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
    ]
    for part, rows in measured:
        commands = " and ".join(f"`python -m {command}`" for command in part.commands)
        lines += ["", f"## {part.title}", "", _line(part.text), "", f"Measured by {commands}."]
        for row in rows:
            lines += ["", *_table(row)]
        lines += ["", f"Not like for like: {_line(part.unlike)}"]
    return "\n".join([*lines, "", "## Where spark-log loses", "", *_losses(measured), ""])


def _table(row: Row) -> list[str]:
    """Return the lines of a row's table, with a column of ratios for each store of spark-log."""
    stores = [ours for ours in (OURS, ON_POSTGRESQL) if ours in row.amounts]
    heads = [f"{name} is" for name in ("spark-log", "on PostgreSQL")[: len(stores)]]
    lines = [f"| {row.what} | measured | {' | '.join(heads)} |", "|---|---|" + "---|" * len(stores)]
    for who, shown in row.shown.items():
        lines.append(f"| {who} | {shown} | {' | '.join(ratio_to_ours(row, who, ours) for ours in stores)} |")
    return lines


def _line(text: str) -> str:
    return " ".join(text.split())


def _losses(measured: Sequence[tuple[Part, Sequence[Row]]]) -> list[str]:
    """Return a line for each peer that took less time than spark-log."""
    lost = [
        f"- {row.what}: {who} takes {row.amounts[who] / row.amounts[ours]:.2f} of the time of {ours}."
        for _, rows in measured
        for row in rows
        for ours in (OURS, ON_POSTGRESQL)
        for who in row.amounts
        if ours in row.amounts and not who.startswith(OURS) and row.amounts[who] < row.amounts[ours]
    ]
    return lost or ["Nowhere in this run."]


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw a small chart for each row: the time of each competitor relative to spark-log's."""
    rows = [row for row in rows if OURS in row.amounts]
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
