"""`make bench`: every benchmark, with a PostgreSQL of its own where the server's programs are installed."""

import subprocess
import sys

from tests.support.postgres import PostgresNotInstalledError, PostgresServer

BENCHMARKS = ("benchmarks.throughput", "benchmarks.planning")


def main() -> int:
    try:
        server = PostgresServer()
    except PostgresNotInstalledError as error:
        print(f"without PostgreSQL: {error}", file=sys.stderr)
        return max(subprocess.run([sys.executable, "-m", name]).returncode for name in BENCHMARKS)
    server.start()
    try:
        commands = [[sys.executable, "-m", name, "--postgresql", server.create_database()] for name in BENCHMARKS]
        return max(subprocess.run(command).returncode for command in commands)
    finally:
        server.stop()
        server.remove()


if __name__ == "__main__":
    sys.exit(main())
