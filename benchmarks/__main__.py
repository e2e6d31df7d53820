"""`make bench`, and bench-first, -jobs, -clients, -replication, -maintenance, -streams, -tables, -typed, -transactions,
-queues, -scale, -console, -real-time and -kafka: on a PostgreSQL of their own too where it is installed.
"""

import argparse
import subprocess
import sys

from tests.support.postgres import PostgresNotInstalledError, PostgresServer

SETS = {
    "first": ("benchmarks.first",),
    "jobs": ("benchmarks.jobs",),
    "log": ("benchmarks.throughput", "benchmarks.planning"),
    "replication": ("benchmarks.replication", "benchmarks.catch_up"),
    "clients": ("benchmarks.producer", "benchmarks.one_record", "benchmarks.consumer", "benchmarks.groups"),
    "maintenance": ("benchmarks.retention", "benchmarks.merge", "benchmarks.compaction"),
    "streams": ("benchmarks.streams",),
    "tables": (
        "benchmarks.tables",
        "benchmarks.publications",
        "benchmarks.delta_log",
        "benchmarks.union_reads",
        "benchmarks.iceberg",
        "benchmarks.current_state",
    ),
    "typed": ("benchmarks.typed", "benchmarks.typed_writes"),
    "transactions": ("benchmarks.transactions",),
    "queues": ("benchmarks.queues",),
    "scale": ("benchmarks.scale", "benchmarks.writers", "benchmarks.sizing_rows", "benchmarks.sizing"),
    "gateway": ("benchmarks.gateway", "benchmarks.quotas"),
    "console": ("benchmarks.console_search", "benchmarks.console_pages"),
    "real-time": ("benchmarks.real_time",),
    "kafka": ("benchmarks.kafka_clients", "benchmarks.kafka_queues", "benchmarks.kafka_spark"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("set", nargs="?", choices=sorted(SETS), default="log", help="which benchmarks [%(default)s]")
    modules = SETS[parser.parse_args().set]
    try:
        server = PostgresServer()
    except PostgresNotInstalledError as error:
        print(f"without PostgreSQL: {error}", file=sys.stderr)
        return max(subprocess.run([sys.executable, "-m", name]).returncode for name in modules)
    server.start()
    try:
        commands = [[sys.executable, "-m", name, "--postgresql", server.create_database()] for name in modules]
        return max(subprocess.run(command).returncode for command in commands)
    finally:
        server.stop()
        server.remove()


if __name__ == "__main__":
    sys.exit(main())
