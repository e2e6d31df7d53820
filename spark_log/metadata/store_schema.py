"""Creates and upgrades the schema of a metadata store, and reads its revision and the stored settings."""

import functools
import json
import re
from collections.abc import Mapping

import sqlalchemy as sa

from spark_log.errors import UnsupportedVersionError
from spark_log.metadata import tables
from spark_log.metadata.address import Address
from spark_log.metadata.connections import schema_fence
from spark_log.metadata.connections.schema_fence import number_of
from spark_log.metadata.sql_columns import CLUSTER

_REVISIONS = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's table of the store's revision. It has one row."""

_SETTINGS = sa.select(CLUSTER.settings)
_POSTGRESQL_VERSION_MIN = 14


def check_server(connection: sa.Connection) -> None:
    """Raise UnsupportedVersionError if the server is an older PostgreSQL than spark-log needs."""
    if connection.dialect.name == "postgresql":
        version = int((connection.dialect.server_version_info or (0,))[0])
        if version < _POSTGRESQL_VERSION_MIN:
            raise UnsupportedVersionError(
                f"the server is PostgreSQL {version}: spark-log needs {_POSTGRESQL_VERSION_MIN} or later"
            )


def revision_of(connection: sa.Connection) -> str | None:
    """Return the store's revision, or None if the database has no store."""
    if not sa.inspect(connection).has_table(_REVISIONS.name):
        return None
    return connection.execute(sa.select(_REVISIONS.c.version_num)).scalar_one_or_none()


def create(connection: sa.Connection) -> None:
    """Create all tables in an empty database."""
    _REVISIONS.create(connection, checkfirst=False)
    connection.execute(_REVISIONS.insert(), {"version_num": tables.SCHEMA_REVISION})
    if connection.dialect.name == "postgresql":
        connection.execution_options(no_parameters=True).exec_driver_sql(_postgresql_statements())
    else:
        tables.metadata.create_all(connection, checkfirst=False)


@functools.cache
def _postgresql_statements() -> str:
    """Return all CREATE and COMMENT statements as one text, which saves hundreds of round trips."""
    statements: list[str] = []

    def add(statement: sa.schema.ExecutableDDLElement, *_: object, **__: object) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)))

    engine = sa.create_mock_engine("postgresql+psycopg://", add, paramstyle="named")  # no %% for %
    tables.metadata.create_all(engine, checkfirst=False)
    return ";".join(statements)


def is_empty(connection: sa.Connection, revision: str | None) -> bool:
    """Return whether a store of this revision has its tables but no cluster yet.

    A copy of a template database is such a store.
    """
    if revision != tables.SCHEMA_REVISION:
        return False
    return connection.execute(sa.select(tables.cluster.c.cluster_id)).first() is None


def is_usable(connection: sa.Connection, revision: str | None) -> bool:
    """Return whether this version of spark-log may use a store of this revision as it is: it is the version's own, or a
    newer one after additive migrations.
    """
    own = number_of(tables.SCHEMA_REVISION)
    if number_of(revision) <= own:
        return revision == tables.SCHEMA_REVISION
    oldest: int | None = connection.execute(sa.select(CLUSTER.oldest_revision)).scalar()
    return oldest is not None and oldest <= own


def check_known(revision: str | None, address: Address) -> None:
    """Raise UnsupportedVersionError unless this version of spark-log can upgrade a store of this revision."""
    from spark_log.metadata import migrations  # imports Alembic, which only an upgrade needs

    if revision in migrations.known_revisions():
        return
    store = f"the metadata store at {address} has revision {revision!r}"
    if re.fullmatch(r"00\d\d", str(revision)):
        raise UnsupportedVersionError(
            f"{store}, which a version of spark-log from before the first release created; such a store cannot be"
            " upgraded: create a new cluster with `spark-log init`, and copy the topics with the version of spark-log"
            " that created the old one"
        )
    raise UnsupportedVersionError(
        f"{store}, which is newer than this spark-log understands ({tables.SCHEMA_REVISION!r}): upgrade spark-log on"
        " this machine"
    )


def upgrade(connection: sa.Connection, address: Address) -> None:
    """Upgrade the store to SCHEMA_REVISION. If several processes call this at once, one upgrades and the others wait.

    Raise UnsupportedVersionError as `check_known` does.
    """
    from spark_log.metadata import migrations

    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time
        connection.execute(sa.text("SET LOCAL lock_timeout = 0"))
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext("spark-log upgrade"))))
    revision = revision_of(connection)
    if is_usable(connection, revision):
        return
    check_known(revision, address)
    if connection.dialect.name == "postgresql":
        schema_fence.end_sessions(connection, number_of(tables.OLDEST_REVISION))
    migrations.upgrade(connection)
    connection.execute(tables.cluster.update().values(oldest_revision=number_of(tables.OLDEST_REVISION)))


def read_overrides(connection: sa.Connection) -> dict[str, str]:
    """Return the stored cluster settings: dotted name to text."""
    overrides: dict[str, str] = json.loads(connection.execute(_SETTINGS).scalar_one())
    return overrides


def write_overrides(connection: sa.Connection, overrides: Mapping[str, str]) -> None:
    """Replace all stored cluster settings by these."""
    connection.execute(tables.cluster.update().values(settings=json.dumps(dict(overrides), sort_keys=True)))
