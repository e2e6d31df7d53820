"""Appends Spark batches exactly once: a hook of the append checks and stores the last batch of the query.

A batch of a sink is identified by its rows; a batch of a transaction (`streams.batch_transaction`) by its entry in
Spark's offset log. A stored batch applies to the topics that existed when it was appended. Topic ids only grow, so a
topic with an id above `newest_topic_id` was created later and has no record of the batch, even with the same name.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.ids import TopicId
from spark_log.log.append.append_transaction import CommitHook
from spark_log.log.append.rules import Batch
from spark_log.log.append.spark_batch_rules import (
    SparkBatch,
    decide_spark_batch,
)
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SPARK_BATCH, TOPIC
from spark_log.metadata.store import Store, StoreClock


class Remembered(NamedTuple):
    """The last batch of a query, and the newest topic at the time of its append."""

    batch: SparkBatch
    newest_topic_id: TopicId

    def lacks(self, topic_ids: Collection[int]) -> bool:
        """Whether all of the topics, at least one, were created after the batch was appended."""
        return bool(topic_ids) and min(topic_ids) > self.newest_topic_id


def append_once_hook(new: SparkBatch, topic_ids: Collection[int]) -> CommitHook:
    """Return the hook for the append of a Spark batch to these topics. The hook may raise CheckpointMismatchError."""
    return lambda connection, now: _is_new(connection, now, new, topic_ids)


def find_last(store: Store, application: str, target: str) -> Remembered | None:
    """Return the last batch of the application that was appended to the target, or None."""
    return store.read(lambda connection: _last(connection, application, target, lock=False))


def not_appended(last: Remembered | None, new: SparkBatch, batches: Sequence[Batch]) -> list[Batch]:
    """Return the batches to append. If `new` was appended before, these are the batches for topics that were created
    since, or all batches if there is no such topic.
    """
    if last is None or new.version > last.batch.version:
        return list(batches)
    return [batch for batch in batches if batch.topic_id > last.newest_topic_id] or list(batches)


def _last(connection: sa.Connection, application: str, target: str, *, lock: bool) -> Remembered | None:
    query = sa.select(
        SPARK_BATCH.application,
        SPARK_BATCH.target,
        SPARK_BATCH.version,
        SPARK_BATCH.record_count,
        SPARK_BATCH.fingerprint,
        SPARK_BATCH.newest_topic_id,
    )
    query = query.where(SPARK_BATCH.application == application, SPARK_BATCH.target == target)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        return None
    batch = SparkBatch(row.application, row.target, row.version, row.record_count, row.fingerprint, strict=True)
    return Remembered(batch, row.newest_topic_id)


def _is_new(connection: sa.Connection, now: StoreClock, new: SparkBatch, topic_ids: Collection[int]) -> bool:
    here = (SPARK_BATCH.application == new.application) & (SPARK_BATCH.target == new.target)
    last = _last(connection, new.application, new.target, lock=True)
    if last is None and connection.dialect.name == "postgresql":
        # there is no row to lock yet: of two concurrent first batches one waits here for the other
        lock = sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(f"{new.application}\n{new.target}", 0)))
        connection.execute(lock)
        last = _last(connection, new.application, new.target, lock=True)
    recreated = last is not None and last.lacks(topic_ids)
    if decide_spark_batch(last.batch if last else None, new, recreated=recreated) == "replay":
        return False
    # topics created later have a higher id; the topics of the batch cannot be recreated before the commit
    newest = connection.execute(sa.select(sa.func.coalesce(sa.func.max(TOPIC.topic_id), 0))).scalar_one()
    values = {"newest_topic_id": newest, "committed_ms": now.wall_ms}
    if last is None or new.target or new.version >= last.batch.version:  # otherwise other topics have a newer batch
        values |= {"version": new.version, "record_count": new.record_count, "fingerprint": new.fingerprint}
    if last is not None:
        connection.execute(t.spark_batch.update().where(here).values(values))
    else:
        connection.execute(t.spark_batch.insert(), {"application": new.application, "target": new.target, **values})
    return True
