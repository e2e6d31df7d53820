"""A primary PostgreSQL and its synchronous standby."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.postgres import USER, PostgresServer


class PostgresPair:
    """A commit on the primary waits for the standby. `promote` makes the standby the new primary."""

    def __init__(self) -> None:
        self.primary = PostgresServer()
        self.primary.start()
        self.standby = PostgresServer(standby_of=self.primary)
        self.standby.start()
        self.primary.require_standby()
        while not self.has_standby():
            time.sleep(0.01)

    def address(self, database_url: str) -> str:
        """The URL of a database of the primary, with both hosts."""
        database = database_url.rpartition("/")[2]
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql+psycopg://{USER}@{hosts}/{database}"

    def has_standby(self) -> bool:
        """Whether the primary has a synchronous standby that is connected."""
        return self.primary.query("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1"

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby. A new synchronous standby starts at the killed server's port."""
        killed, self.primary = self.primary, self.standby
        killed.kill()
        killed.remove()
        self.primary.promote()
        self.standby = PostgresServer(standby_of=self.primary)
        self.standby.port = killed.port
        self.standby.start()
        self.primary.require_standby()
        while not self.has_standby():
            time.sleep(0.01)

    def remove(self) -> None:
        for server in (self.primary, self.standby):
            server.kill()
            server.remove()


@contextmanager
def postgres_pair() -> Iterator[PostgresPair]:
    pair = PostgresPair()
    try:
        yield pair
    finally:
        pair.remove()
