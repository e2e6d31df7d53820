"""A Spark batch is appended once: the part of its append that finds out, and remembers it.

A sink's batch is known by its rows; a transaction's (`streams.batch_transaction`) by its entry in Spark's offset log.
"""

import sqlalchemy as sa

from spark_log.log.append import SparkBatch, decide_spark_batch
from spark_log.log.appender import Part
from spark_log.metadata import tables as t
from spark_log.metadata.store import Store, StoreClock


def once(new: SparkBatch) -> Part:
    """The part of a Spark batch's append. CheckpointMismatchError in it where `decide_spark_batch` raises."""
    return lambda connection, now: _is_new(connection, now, new)


def find_last(store: Store, application: str, target: str) -> SparkBatch | None:
    """The last batch that was appended."""
    return store.read(lambda connection: _last(connection, application, target, lock=False))


def _last(connection: sa.Connection, application: str, target: str, *, lock: bool) -> SparkBatch | None:
    s = t.spark_batch.c
    query = sa.select(s.application, s.target, s.version, s.record_count, s.fingerprint)
    query = query.where(s.application == application, s.target == target)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return SparkBatch(*row, strict=True) if row else None


def _is_new(connection: sa.Connection, now: StoreClock, new: SparkBatch) -> bool:
    s = t.spark_batch.c
    here = (s.application == new.application) & (s.target == new.target)
    last = _last(connection, new.application, new.target, lock=True)
    if last is None and connection.dialect.name == "postgresql":
        # two first batches at once: no row to lock yet, so one waits here for the other
        lock = sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(f"{new.application}\n{new.target}", 0)))
        connection.execute(lock)
        last = _last(connection, new.application, new.target, lock=True)
    if decide_spark_batch(last, new) == "replay":
        return False
    values = {
        "version": new.version,
        "record_count": new.record_count,
        "fingerprint": new.fingerprint,
        "committed_ms": now.wall_ms,
    }
    if last is not None:
        connection.execute(t.spark_batch.update().where(here).values(values))
    else:
        connection.execute(t.spark_batch.insert(), {"application": new.application, "target": new.target, **values})
    return True
