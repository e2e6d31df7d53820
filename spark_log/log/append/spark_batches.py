"""Appends Spark batches exactly once: a hook of the append checks and stores the last batch of the query in each topic.

A batch is identified by its entry in Spark's offset log. A sink that cannot read the entry identifies the batch by its
rows. A batch that writes to no topic, for example only the offsets of a group, has a row with topic id 0.
"""

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from spark_log.errors import CheckpointMismatchError
from spark_log.log.append.append_transaction import CommitHook
from spark_log.log.append.rules import Batch
from spark_log.log.append.spark_batch_rules import TRANSACTED, SparkBatch, check_other_outputs, topics_without
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_or_replace
from spark_log.metadata.sql_columns import SPARK_BATCH
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock

NO_TOPIC = 0


def append_once_hook(new: SparkBatch, topic_ids: Collection[int]) -> CommitHook:
    """Return the hook for the append of a Spark batch to these topics, or to NO_TOPIC if there are none. The hook may
    raise CheckpointMismatchError.
    """
    return lambda connection, now: _is_new(connection, now, new, topic_ids or {NO_TOPIC})


def find_last(store: Store, new: SparkBatch, *, final: bool = False) -> dict[int, SparkBatch]:
    """Return the last batch that the application of `new` appended to each topic with the target of `new`, by topic id.
    With `final` no failover can lose a batch that is returned. Raises CheckpointMismatchError if `new` was appended
    with another target.
    """
    read = store.read_as_primary if final else store.read
    return read(lambda connection: _last(connection, new))


def not_appended(last: dict[int, SparkBatch], new: SparkBatch, batches: Sequence[Batch]) -> list[Batch]:
    """Return the batches for topics to which `new` was not appended before. If there are none, return all batches, so
    that the hook refuses them. Raises CheckpointMismatchError.
    """
    missing = topics_without(new, last, {batch.topic_id for batch in batches})
    return [batch for batch in batches if batch.topic_id in missing] or list(batches)


def _last(connection: sa.Connection, new: SparkBatch, *, lock: bool = False) -> dict[int, SparkBatch]:
    query = sa.select(
        SPARK_BATCH.target, SPARK_BATCH.topic_id, SPARK_BATCH.version, SPARK_BATCH.record_count, SPARK_BATCH.fingerprint
    ).where(SPARK_BATCH.application == new.application)
    if not new.strict:
        query = query.where(SPARK_BATCH.target == new.target)
    if lock:
        query = query.with_for_update()
    last = {
        (target, topic_id): SparkBatch(new.application, target, version, count, fingerprint, strict=True)
        for target, topic_id, version, count, fingerprint in connection.execute(query)
    }
    if new.target == TRANSACTED:
        last = _with_earlier_transactions(last)
    check_other_outputs(new, [batch for (target, _), batch in last.items() if target != new.target])
    return {topic_id: batch for (target, topic_id), batch in last.items() if target == new.target}


def _with_earlier_transactions(last: dict[tuple[str, int], SparkBatch]) -> dict[tuple[str, int], SparkBatch]:
    """Return the batches of an application, by target and topic, with the transaction that an earlier release stored
    with target "" and no topic. The migration from v8 copied that batch to every topic: the copies are left out.
    """
    earlier = last.get(("", NO_TOPIC))
    if earlier is None or (TRANSACTED, NO_TOPIC) in last:
        return last
    others = {key: batch for key, batch in last.items() if key[0] or batch.version > earlier.version}
    return {**others, (TRANSACTED, NO_TOPIC): earlier}


def _is_new(connection: sa.Connection, now: StoreClock, new: SparkBatch, topic_ids: Collection[int]) -> bool:
    if connection.dialect.name == "postgresql":  # a concurrent batch waits here
        locked = new.application if new.strict else f"{new.application}\n{new.target}"
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(locked, 0))))
    # FOR UPDATE makes the commit of a transaction that only finds the batch wait for the standby. The standby may lack
    # the batch, if the wait of the batch's own commit was cancelled
    missing = topics_without(new, _last(connection, new, lock=True), topic_ids)
    if not missing:
        return False
    if missing != set(topic_ids):
        raise CheckpointMismatchError(f"{new.application}: another driver appends batch {new.version} now")
    facts = {"version": new.version, "record_count": new.record_count, "fingerprint": new.stored}
    key = {"application": new.application, "target": new.target}
    rows = [{**key, "topic_id": topic_id, **facts, "committed_ms": now.wall_ms} for topic_id in sorted(topic_ids)]
    insert_or_replace(connection, t.spark_batch, rows)
    return True
