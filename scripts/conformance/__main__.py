"""Run the suites, and print a table in Markdown."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.conformance.applications import applications
from scripts.conformance.bank import bank
from scripts.conformance.consumer_groups import consumer_groups
from scripts.conformance.debezium import debezium
from scripts.conformance.franz_go import franz_go
from scripts.conformance.kafka_python import kafka_python
from scripts.conformance.kafka_security import kafka_security
from scripts.conformance.kafka_tools import kafka_tools
from scripts.conformance.librdkafka import librdkafka
from scripts.conformance.matrix import matrix
from scripts.conformance.other_clients import other_clients
from scripts.conformance.results import Result
from scripts.conformance.share_groups import share_groups

SUITES: dict[str, Callable[[Path], list[Result]]] = {
    "franz-go": franz_go,
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
    "kafka-tools": kafka_tools,
    "kafka-security": kafka_security,
    "matrix": matrix,
    "consumer-groups": consumer_groups,
    "other-clients": other_clients,
    "applications": applications,
    "debezium": debezium,
    "bank": bank,
    "share-groups": share_groups,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; default: all")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--cache", type=Path, default=home / "spark-log-conformance", help="where suites are kept")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    cache = arguments.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    print("| Suite | Test | Result |\n| --- | --- | --- |")
    failed = []
    for name in arguments.suites or SUITES:
        try:
            for result in SUITES[name](cache):
                print(f"| {result.suite} | `{result.test}` | {result.outcome} |", flush=True)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # the other suites have results
            failed.append(f"{name}: {error}")
    for failure in failed:
        print(f"no result: {failure}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
