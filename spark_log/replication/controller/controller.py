"""Changes leaders and ISRs as the controller, by the rules of `log.partitions.replication_rules`.

Only the holder of the lease `controller` acts. Each of its transactions has a `fence`, which raises if the holder's
term has ended (invariant 5). There is no state in memory: each run reads from the store which partitions need a change.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.brokers import alive_log_dirs
from spark_log.cluster.lease import Fence, Lease
from spark_log.cluster.topics import Topic, find_topics, undamaged_config
from spark_log.config import ClusterSettings
from spark_log.errors import RetriableError
from spark_log.errors.first_failure import FirstFailure
from spark_log.failpoints import failpoint
from spark_log.ids import LogDirId
from spark_log.log.append.producer_rows import delete_batches_above
from spark_log.log.partitions.partition_rows import Key, delete_compactions_above, lock_partitions, save_partitions
from spark_log.log.partitions.replication_rules import (
    PartitionState,
    Truncation,
    elect_preferred,
    fail_over,
    shrink_isr,
)
from spark_log.log.partitions.retired_files import retire_files
from spark_log.log.partitions.truncations import record_truncation
from spark_log.log.segments.segment_rows import delete_segments_above
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import LOG_DIR, PARTITION, REPLICA, TOPIC
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock
from spark_log.replication.controller.isr_lag import Member
from spark_log.tables.publication_resets import lower_seen_offsets

logger = logging.getLogger(__name__)

LEASE = "controller"

_PARTITIONS_PER_TRANSACTION = 2_000


@dataclass
class Elections:
    """The partitions that the controller changed. `elected` have a new leader, `shrunk` have the same leader and a
    smaller ISR, and `offline` have lost their leader. `truncations` are the logs that were truncated.
    """

    elected: list[Key] = field(default_factory=list)
    shrunk: list[Key] = field(default_factory=list)
    offline: list[Key] = field(default_factory=list)
    truncations: list[tuple[Key, Truncation]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.elected or self.shrunk or self.offline)


def elect_leaders(store: Store, fence: Fence, *, unclean: Collection[Key] = ()) -> Elections:
    """Remove dead replicas from the ISRs and elect leaders for partitions whose leader is dead or missing.

    In the partitions of `unclean`, a replica outside the ISR may lead. One transaction changes at most 2,000
    partitions. A partition that fails does not stop the others: the first error is raised at the end. Raises the error
    of `fence`; changes of earlier transactions stay.
    """

    def read(connection: sa.Connection) -> list[Key]:
        return _partitions_to_change(connection, alive_log_dirs(connection, store.clock(connection)), unclean)

    def elect(chosen: list[Key]) -> None:
        part = store.transact(lambda c: _elect(c, store, chosen, unclean), fence=fence, announce=True)
        for name in ("elected", "shrunk", "offline", "truncations"):
            getattr(done, name).extend(getattr(part, name))

    keys = store.read(read)
    done = Elections()
    with FirstFailure() as failure:
        for first in range(0, len(keys), _PARTITIONS_PER_TRANSACTION):
            chosen = keys[first : first + _PARTITIONS_PER_TRANSACTION]
            try:
                elect(chosen)
            except RetriableError:
                raise
            except Exception:  # rows of one partition may be damaged: now each partition has its own transaction
                for key in chosen:
                    try:
                        elect([key])
                    except RetriableError:
                        raise
                    except Exception as error:
                        failure.keep(error)
    return done


def elect_preferred_leaders(store: Store, fence: Fence, keys: Collection[Key]) -> list[Key]:
    """Elect the preferred leaders that are alive and in the ISR, and have every record. Return the partitions whose
    leader changed.
    """
    return _change(store, fence, keys, lambda _key, state, alive: elect_preferred(state, alive))


def shrink_isrs(store: Store, fence: Fence, late: Collection[Member]) -> list[Key]:
    """Remove the late members from their ISRs, unless they have every record by now. Return the changed partitions."""
    by_partition: dict[Key, set[int]] = {}
    for key, broker_id in late:
        by_partition.setdefault(key, set()).add(broker_id)
    return _change(store, fence, by_partition.keys(), lambda key, state, _alive: shrink_isr(state, by_partition[key]))


def _change(
    store: Store,
    fence: Fence,
    keys: Collection[Key],
    rule: Callable[[Key, PartitionState, Collection[LogDirId]], PartitionState],
) -> list[Key]:
    """Apply `rule` to partitions, with the log dirs that are alive. Return the changed partitions. One transaction
    locks at most 2,000 partitions, because appends wait for it.
    """

    def change(portion: Sequence[Key], connection: sa.Connection) -> list[Key]:
        alive = alive_log_dirs(connection, store.clock(connection))
        before = lock_partitions(connection, portion)
        after = {key: rule(key, state, alive) for key, state in before.items()}
        save_partitions(connection, before, after)
        return [key for key, state in after.items() if state is not before[key]]

    changed: list[Key] = []
    ordered = sorted(keys)
    for first in range(0, len(ordered), _PARTITIONS_PER_TRANSACTION):
        portion = ordered[first : first + _PARTITIONS_PER_TRANSACTION]
        changed += store.transact(partial(change, portion), fence=fence, announce=True)
    return changed


def _partitions_to_change(
    connection: sa.Connection, alive: Collection[LogDirId], unclean: Collection[Key]
) -> list[Key]:
    """Return the partitions to change: those of `unclean`, those with a leader and a dead ISR member, and those without
    a leader but with a replica that may lead.
    """
    log_dirs = connection.execute(sa.select(LOG_DIR.log_dir_id)).scalars()
    dead = [log_dir_id for log_dir_id in log_dirs if log_dir_id not in alive]
    join = t.partition.join(
        t.replica, (REPLICA.topic_id == PARTITION.topic_id) & (REPLICA.partition == PARTITION.partition)
    )
    keys: set[Key] = set(unclean)
    if dead:
        led = sa.select(PARTITION.topic_id, PARTITION.partition).select_from(join)
        led = led.where(REPLICA.log_dir_id.in_(dead), REPLICA.in_sync, PARTITION.leader.is_not(None))
        keys.update((topic_id, partition) for topic_id, partition in connection.execute(led))
    waiting = (
        sa.select(PARTITION.topic_id, PARTITION.partition, REPLICA.in_sync, TOPIC.configs)
        .select_from(join.join(t.topic, TOPIC.topic_id == PARTITION.topic_id))
        .where(PARTITION.leader.is_(None), REPLICA.log_dir_id.in_(list(alive)))
    )
    keys.update(
        (topic_id, partition)
        for topic_id, partition, in_sync, configs in connection.execute(waiting)
        if in_sync or ((config := undamaged_config(configs)) is not None and config.unclean_leader_election_enable)
    )
    return sorted(keys)


def _elect(connection: sa.Connection, store: Store, keys: list[Key], unclean: Collection[Key]) -> Elections:
    now = store.clock(connection)
    alive = alive_log_dirs(connection, now)
    before = lock_partitions(connection, keys)
    after: dict[Key, PartitionState] = {}
    done = Elections()
    topics: dict[int, Topic] = {}
    for key, state in before.items():
        new, truncation = fail_over(state, alive, unclean=key in unclean)
        if truncation is not None:
            topics = topics or {topic.topic_id: topic for topic in find_topics(connection).values()}
            if key[0] not in topics:  # the topic is being deleted, or moved to this store
                continue
            new = truncate_log(connection, topics[key[0]], key[1], truncation, state, new, now)
            done.truncations.append((key, truncation))
            start = truncation.start_offset
            report = logger.warning if new.leader in state.isr else logger.error
            report(
                "%s-%s: broker %s leads without the offsets [%s, %s), which are lost%s",
                topics[key[0]].name, key[1], new.leader, start, state.log_end_offset,
                f"; readers had seen those below {state.high_watermark}" if state.high_watermark > start else "",
            )  # fmt: skip
        after[key] = new
        if new is state:
            continue
        if new.leader is None:
            done.offline.append(key)
        elif new.leader != state.leader:
            done.elected.append(key)
        else:
            done.shrunk.append(key)
    save_partitions(connection, before, after)
    failpoint("controller.elected")
    return done


def truncate_log(
    connection: sa.Connection,
    topic: Topic,
    partition: int,
    truncation: Truncation,
    before: PartitionState,
    after: PartitionState,
    now: StoreClock,
) -> PartitionState:
    """Truncate the log at `truncation.start_offset`: remove the rows of later segments and of their records.

    Return the state to save. `before` and `after` are the partition before and after the election, which truncates at a
    segment boundary. The segment files are retired, so that readers can finish. The truncation is recorded.
    """
    key: Key = (topic.topic_id, partition)
    removed = delete_segments_above(connection, key, truncation.start_offset)
    retire_files(connection, topic, partition, removed.files, after.change, now)
    delete_batches_above(connection, key, truncation.start_offset)
    lower_seen_offsets(connection, key, truncation.start_offset)  # other records will get these offsets
    delete_compactions_above(connection, key, truncation.start_offset)  # these compactions read removed records
    record_truncation(connection, key, truncation, before, after, removed.record_count, now)
    return after._replace(tail_bytes=after.tail_bytes - removed.inline_bytes)


@contextmanager
def fallback_term(store: Store, settings: ClusterSettings) -> Iterator[Fence | None]:
    """Yield the fence of a controller term for one task. Yield None if another process is the controller.

    The term is not renewed. It ends with the block, or after controller.lease.ms.
    """
    lease = Lease(store, LEASE, settings.controller_lease_ms)
    if not lease.take_or_renew():
        yield None
        return
    try:
        yield lease.check
    finally:
        lease.give_back()
