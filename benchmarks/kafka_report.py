"""Options and report of comparisons, and their rows for the proof page: one line per competitor, with its ratio to
spark-log.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import setup
from benchmarks.machine import describe_machine

OURS = "spark-log"
ON_POSTGRESQL = f"{OURS}, PostgreSQL"


@dataclass(frozen=True)
class Bar:
    """A bound of a competitor's result in words, and whether the result keeps it."""

    who: str
    text: str
    kept: bool

    def __str__(self) -> str:
        return f"{self.text}: {'met' if self.kept else 'missed'}"


@dataclass(frozen=True)
class Row:
    """A measurement of several competitors: their results as shown, and as seconds or bytes, where less is better.
    A result that no ratio is formed of has no amount.
    """

    what: str
    shown: dict[str, str]
    amounts: dict[str, float]
    bars: list[Bar] = field(default_factory=list)

    def bars_of(self, who: str) -> str:
        """Return the bars of a competitor in words."""
        return "; ".join(str(bar) for bar in self.bars if bar.who == who)

    def with_bar(self, who: str, share: float, peer: str) -> "Row":
        """Return the row with a bar for the rate of a competitor: at least a share of that of a peer."""
        kept = self.amounts[who] * share <= self.amounts[peer]
        return replace(self, bars=[*self.bars, Bar(who, f">= {share:g} x {peer}", kept)])

    def with_limit(self, who: str, times: float, peer: str) -> "Row":
        """Return the row with a bar for the amount of a competitor: at most `times` that of a peer."""
        kept = self.amounts[who] <= times * self.amounts[peer]
        return replace(self, bars=[*self.bars, Bar(who, f"<= {times:g} x {peer}", kept)])


def ratio_to_ours(row: Row, who: str, ours: str = OURS) -> str:
    """Return how many times as much as spark-log a competitor took, or nothing for spark-log and without it."""
    compared = who != ours and ours in row.amounts and who in row.amounts
    return f"{row.amounts[who] / row.amounts[ours]:.2f} x" if compared else ""


def parser(about: str | None, rounds: int | None = 5) -> argparse.ArgumentParser:
    """Options that all comparisons have."""
    options = setup.parser(about, rounds)
    options.add_argument("--json", help="write the results to this file as well")
    return options


def percentiles(seconds: Sequence[float]) -> str:
    """The median and the 99th percentile of times, in ms."""
    return f"p50 {1000 * statistics.median(seconds):.2f} ms, p99 {1000 * part_of(seconds, 0.99):.2f} ms"


def part_of(samples: Sequence[float], share: float) -> float:
    """Return the sample below which this share of all is."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def latency_bars(who: str, seconds: Sequence[float], p50_ms: float) -> list[Bar]:
    """Return the bars of one record's latency: the median, and the 99th percentile beside it."""
    p50, p99 = statistics.median(seconds), part_of(seconds, 0.99)
    return [Bar(who, f"p50 <= {p50_ms:g} ms", 1000 * p50 <= p50_ms), Bar(who, "p99 <= 3 x p50", p99 <= 3 * p50)]


def print_rows(title: str, rows: list[Row], json_file: str | None) -> None:
    """A table with every competitor, the machine and the date; the same as JSON in a file if one is named."""
    table = Table(title=title)
    for column in ("what", "who", "measured", "spark-log is", "bar"):
        table.add_column(column)
    for row in rows:
        for number, (who, shown) in enumerate(row.shown.items()):
            table.add_row(row.what if number == 0 else "", who, shown, ratio_to_ours(row, who), row.bars_of(who))
        table.add_section()
    console = Console()
    console.print(table)
    console.print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")
    console.print(
        "[dim]spark-log is N x: the other's time or bytes divided by spark-log's; below 1 the other is better"
    )
    write_rows(rows, json_file)


def write_rows(rows: Sequence[Row], json_file: str | None) -> None:
    """Write the rows to a file as JSON, if one is named."""
    if json_file:
        Path(json_file).write_text(json.dumps([asdict(row) for row in rows], indent=1))


def read_rows(json_file: Path) -> list[Row]:
    """Return the rows that `write_rows` has written."""
    return [Row(**{**row, "bars": [Bar(**bar) for bar in row["bars"]]}) for row in json.loads(json_file.read_text())]
