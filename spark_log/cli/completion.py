"""Completes the names of topics, groups, brokers, users, configs and settings at Tab.

The shell runs `spark-log` at each Tab. So the names are read with the database's own driver: an import of SQLAlchemy
would take longer than everything else. Nothing is printed or raised. Without a cluster there are no completions.
"""

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import typer

from spark_log.metadata.address import Address, check_transport

NAMES_MAX = 1_000
_TIMEOUT_S = 1
_WITHOUT_MEANING = re.compile(r"[\w.:,@%+=/-]+")
"""Matches names without special meaning for a shell. Clients choose group ids, and a shell would run `$(...)`."""

Complete = Callable[[typer.Context, str], list[str]]


def _of_cluster(column: str, table: str) -> Complete:
    def complete(context: typer.Context, incomplete: str) -> list[str]:
        query = (
            f"SELECT {column} FROM {table} WHERE substr(CAST({column} AS text), 1, {len(incomplete)}) = {{mark}}"
            f" ORDER BY 1 LIMIT {NAMES_MAX}"
        )
        try:
            # the environment variable may name the cluster, as in the command itself
            return _read(Address.parse(context.params["cluster"]), query, incomplete)
        except Exception:
            return []

    return complete


def _read(address: Address, query: str, incomplete: str) -> list[str]:
    with _connection(address) as (connection, mark):
        names = [str(row[0]) for row in connection.execute(query.format(mark=mark), (incomplete,))]
    return [name for name in names if _WITHOUT_MEANING.fullmatch(name)]


@contextmanager
def _connection(address: Address) -> Iterator[tuple[Any, str]]:
    """Open a read-only connection. Yield it with the placeholder for parameters."""
    if address.folder is not None:
        path = address.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_TIMEOUT_S)) as connection:
            yield connection, "?"
    else:
        import psycopg

        check_transport(address)
        url = address.url.replace("postgresql+psycopg://", "postgresql://", 1)
        with psycopg.connect(
            url, connect_timeout=_TIMEOUT_S + 1, options="-c default_transaction_read_only=on"
        ) as other:
            yield other, "%s"


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def topic_configs(incomplete: str) -> list[str]:
    from spark_log.config import definitions

    return _starting((definition.name for definition in definitions()), incomplete)


def group_configs(incomplete: str) -> list[str]:
    from spark_log.config import group_definitions

    return _starting(group_definitions(), incomplete)


def cluster_settings(incomplete: str) -> list[str]:
    from spark_log.config import ClusterSettings

    return _starting(ClusterSettings().as_text(), incomplete)


topics = _of_cluster("name", "topic")
groups = _of_cluster("group_id", "consumer_group")
brokers = _of_cluster("broker_id", "broker")
users = _of_cluster("user_name", "scram_credential")
