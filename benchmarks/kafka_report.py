"""Options and report of the comparisons with Kafka: one line per competitor, with its ratio to spark-log."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine

OURS = "spark-log"


@dataclass(frozen=True)
class Row:
    """A measurement of several competitors: their results as shown, and as seconds or bytes, where less is better."""

    what: str
    shown: dict[str, str]
    amounts: dict[str, float]


def ratio_to_ours(row: Row, who: str, ours: str = OURS) -> str:
    """Return how many times as much as spark-log a competitor took, or nothing for spark-log and without it."""
    return "" if who == ours or ours not in row.amounts else f"{row.amounts[who] / row.amounts[ours]:.2f} x"


def parser(about: str | None) -> argparse.ArgumentParser:
    """Options that all comparisons have."""
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--folder", help="where to work (default: the system's temporary folder)")
    found.add_argument("--json", help="write the results to this file as well")
    found.add_argument(
        "--postgresql", help="URL of an empty PostgreSQL database, where the comparison has a part for it"
    )
    return found


def percentiles(seconds: Sequence[float]) -> str:
    """The median and the 99th percentile of times, in ms."""
    ordered = sorted(seconds)
    p50, p99 = (1000 * ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99))
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"


def print_rows(title: str, rows: list[Row], json_file: str | None) -> None:
    """A table with every competitor, the machine and the date; the same as JSON in a file if one is named."""
    table = Table(title=title)
    for column in ("what", "who", "measured", "spark-log is"):
        table.add_column(column)
    for row in rows:
        for number, (who, shown) in enumerate(row.shown.items()):
            table.add_row(row.what if number == 0 else "", who, shown, ratio_to_ours(row, who))
        table.add_section()
    console = Console()
    console.print(table)
    console.print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")
    console.print(
        "[dim]spark-log is N x: the other's time or bytes divided by spark-log's; below 1 the other is better"
    )
    if json_file:
        Path(json_file).write_text(json.dumps([asdict(row) for row in rows], indent=1))
