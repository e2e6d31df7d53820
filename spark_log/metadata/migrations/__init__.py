"""Runs the Alembic migrations of the metadata store inside the caller's transaction.

A new store is created with the tables of `metadata/tables/`; a migration changes only stores of earlier releases.
To change a table: change `metadata/tables/`, add `versions/v<n>.py` with the difference, and set SCHEMA_REVISION and
OLDEST_REVISION of `metadata.tables`.

After a migration with `additive = True`, processes of the revision before it go on. Such a migration adds tables, or
columns with a default, and does not change the meaning of anything that their code reads or writes. After any other
migration, their code is refused (`metadata/connections/schema_fence.py`). To remove a column while old processes run,
let one release stop using it, and remove it in a later one.
"""

import threading
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

FOLDER = Path(__file__).parent


def _config(connection: sa.Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def known_revisions() -> frozenset[str]:
    """Return all revisions that this version of spark-log can upgrade to the newest one, which is included."""
    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def upgrade(connection: sa.Connection) -> None:
    """Upgrade the store of this connection to the newest revision."""
    with _one_at_a_time:
        command.upgrade(_config(connection), "head")


_one_at_a_time = threading.Lock()
"""A lock, because Alembic keeps its state in module globals."""
