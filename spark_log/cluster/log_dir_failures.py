"""Stores the failures of log dirs that writers report, until the controller has inspected the log dirs."""

import sqlalchemy as sa

from spark_log.cluster.brokers import change_log_dirs
from spark_log.ids import LogDirId
from spark_log.metadata.sql_columns import LOG_DIR
from spark_log.metadata.store import Store


def report_failure(store: Store, log_dir_id: LogDirId, size: int) -> None:
    """Ask the controller to inspect an online log dir in which a file of `size` bytes could not be written. An earlier
    report of a larger file stays.
    """

    def body(connection: sa.Connection) -> None:
        smaller = LOG_DIR.suspect_bytes.is_(None) | (LOG_DIR.suspect_bytes < size)
        change_log_dirs(connection, [log_dir_id], LOG_DIR.online & smaller, suspect_bytes=size)

    store.transact(body, announce=True)


def suspected_log_dirs(connection: sa.Connection) -> list[LogDirId]:
    """Return the online log dirs with a reported failure."""
    query = sa.select(LOG_DIR.log_dir_id).where(LOG_DIR.suspect_bytes.is_not(None), LOG_DIR.online)
    return [LogDirId(log_dir_id) for log_dir_id in connection.execute(query).scalars()]


def failures_of_log_dirs(connection: sa.Connection) -> dict[LogDirId, str]:
    """Return why each log dir that is offline was marked as failed. Only an inspection finds out whether it is back."""
    rows = connection.execute(sa.select(LOG_DIR.log_dir_id, LOG_DIR.failure).where(~LOG_DIR.online))
    return {LogDirId(row.log_dir_id): row.failure or "" for row in rows}
