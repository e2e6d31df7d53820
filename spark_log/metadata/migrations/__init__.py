"""Alembic migrations of the metadata store, run inside the caller's transaction."""

import functools
import threading
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory


def _config(connection: sa.Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


@functools.cache
def known_revisions() -> frozenset[str]:
    """Every revision that this version of spark-log can bring up to its own."""
    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def upgrade(connection: sa.Connection) -> None:
    """Bring the store of this connection to the newest revision."""
    with _one_at_a_time:
        command.upgrade(_config(connection), "head")


_one_at_a_time = threading.Lock()
"""Alembic keeps what it is doing in module globals."""
