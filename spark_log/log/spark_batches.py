"""A Spark batch is appended once: the part of its append that finds out, and remembers it."""

import sqlalchemy as sa

from spark_log.log.append import SparkBatch, decide_spark_batch
from spark_log.log.appender import Part
from spark_log.metadata import tables as t
from spark_log.metadata.store import StoreClock


def once(new: SparkBatch) -> Part:
    """The part of a Spark batch's append. CheckpointMismatchError in it where `decide_spark_batch` raises."""
    return lambda connection, now: _is_new(connection, now, new)


def _is_new(connection: sa.Connection, now: StoreClock, new: SparkBatch) -> bool:
    s = t.spark_batch.c
    here = (s.application == new.application) & (s.target == new.target)
    query = sa.select(s.application, s.target, s.version, s.record_count, s.fingerprint).where(here).with_for_update()
    row = connection.execute(query).one_or_none()
    if row is None and connection.dialect.name == "postgresql":
        # two first batches at once: no row to lock yet, so one waits here for the other
        lock = sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(f"{new.application}\n{new.target}", 0)))
        connection.execute(lock)
        row = connection.execute(query).one_or_none()
    last = SparkBatch(*row, strict=new.strict) if row else None
    if decide_spark_batch(last, new) == "replay":
        return False
    values = {
        "version": new.version,
        "record_count": new.record_count,
        "fingerprint": new.fingerprint,
        "committed_ms": now.wall_ms,
    }
    if row:
        connection.execute(t.spark_batch.update().where(here).values(values))
    else:
        connection.execute(t.spark_batch.insert(), {"application": new.application, "target": new.target, **values})
    return True
