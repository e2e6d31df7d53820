"""How fast the clients are, against the bars of the project: `python -m benchmarks.clients [--only producer]`.

Each section is a function in SECTIONS that measures on one store after the other (a SQLite cluster; PostgreSQL too with
--postgresql) and yields rows. Every number is the median of --rounds turns after a warm-up, with the spread beside it.
Durable means that an acknowledgement waits for fsync, which is the default everywhere.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from spark_log.cluster.cluster import Cluster


@dataclass(frozen=True)
class Row:
    """A line of the report. `bar` is what it should reach, in words, if anything."""

    what: str
    store: str
    measured: str
    bar: str = ""


@dataclass(frozen=True)
class Bench:
    """What a section works on: a cluster, shared with the other sections: topics need names of their own."""

    address: str
    store: str
    rounds: int

    def median(self, measure: Callable[[], float]) -> tuple[float, float, float]:
        """(median, least, most) of the rounds; one more goes first and does not count."""
        measure()
        found = [measure() for _ in range(self.rounds)]
        return statistics.median(found), min(found), max(found)


Section = Callable[[Bench], Iterator[Row]]


def rate(found: tuple[float, float, float]) -> str:
    """Records a second."""
    middle, least, most = found
    return f"{middle:,.0f}/s ({least:,.0f} to {most:,.0f})"


def percentiles(seconds: list[float]) -> str:
    """p50 and p99 in milliseconds."""
    ordered = sorted(seconds)
    p50, p99 = (1000 * ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99))
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"


def main() -> None:
    from benchmarks.clients_producer import producer

    sections: dict[str, Section] = {"producer": producer}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(sections), help="this section; repeatable")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the clusters are made; default: the system's temporary folder")
    parser.add_argument("--postgresql", help="URL of an empty PostgreSQL database, to be measured too")
    arguments = parser.parse_args()
    table = Table(title=f"clients, median of {arguments.rounds} rounds")
    for column in ("what", "store", "measured", "bar"):
        table.add_column(column)
    chosen = {name: section for name, section in sections.items() if not arguments.only or name in arguments.only}
    for store, url in (("SQLite", None), ("PostgreSQL", arguments.postgresql)):
        if store == "PostgreSQL" and url is None:
            continue
        with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as folder:
            address = url or f"{folder}/cluster"
            Cluster.init(address, log_dir=f"{folder}/log-dir" if url else None).close()
            for section in chosen.values():
                for row in section(Bench(address, store, arguments.rounds)):
                    table.add_row(row.what, row.store, row.measured, row.bar)
    console = Console()
    console.print(table)
    console.print(describe_machine())


if __name__ == "__main__":
    main()
