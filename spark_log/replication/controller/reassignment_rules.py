"""Moves a partition's replicas to other brokers without losing a record, by the rules of reassignment. Pure.

    begin   the new replicas join AR behind the others, empty, and catch up like any other follower
    finish  once all replicas of the target are in sync and alive, AR becomes the target; other replicas are removed
    cancel  AR becomes the original AR again; replicas that were added are removed

The files of a removed replica are deleted. So the removal of a replica begins a new leader epoch, even if the leader
stays: if the broker later gets a replica again, files that were written to its log dir in the old epoch must not count.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spark_log.errors import InvalidReplicationAssignmentError
from spark_log.log.partitions.replication_rules import PartitionState, Replica, with_replicas


@dataclass(frozen=True)
class Reassignment:
    """A reassignment in progress. `target` is the new AR, and `original` the previous AR, as broker ids."""

    target: tuple[int, ...]
    original: tuple[int, ...]


def begin(
    state: PartitionState,
    target: Sequence[int],
    log_dirs: Mapping[int, int],
    under_way: Reassignment | None = None,
) -> tuple[PartitionState, Reassignment]:
    """Add the missing replicas of `target`, each in its broker's log dir in `log_dirs`.

    As in Kafka, a new target may replace the target of a reassignment `under_way`; the original AR stays. Replicas that
    only the old target had are removed: at once if they are not in sync, otherwise by `finish` or `cancel`.

    Raises InvalidReplicationAssignmentError if the target is empty, names a broker twice, or names a broker that has no
    replica and no log dir in `log_dirs`.
    """
    if not target:
        raise InvalidReplicationAssignmentError("replicas: a partition needs at least one, got []")
    if len(set(target)) < len(target):
        raise InvalidReplicationAssignmentError(f"replicas: a broker twice in {list(target)}")
    missing = [broker_id for broker_id in target if state.replica(broker_id) is None]
    unknown = [broker_id for broker_id in missing if broker_id not in log_dirs]
    if unknown:
        raise InvalidReplicationAssignmentError(f"replicas: no log dir of broker(s) {unknown} in {list(target)}")
    original = under_way.original if under_way else tuple(replica.broker_id for replica in state.replicas)
    kept = [r for r in state.replicas if r.broker_id in {*original, *target} or r.in_sync]
    # added replicas have no segments yet; catching up skips the offsets that retention has deleted
    added = [Replica(broker_id, 0, False, log_dirs[broker_id]) for broker_id in missing]
    return _assigned(state, [*kept, *added], state.leader), Reassignment(tuple(target), original)


def finish(state: PartitionState, reassignment: Reassignment, alive_log_dirs: Collection[int]) -> PartitionState | None:
    """Return the partition with the target as its AR, or None while the target is not ready.

    Every replica of the target must be in the ISR and alive, because a removed replica may be the only other one with
    an acknowledged record. The leader stays if it is in the target. Otherwise the first replica of the target with
    every record becomes the leader. After acks=1 there may be none: then the target is ready once one has caught up.
    """
    found = [state.replica(broker_id) for broker_id in reassignment.target]
    ready = [r for r in found if r is not None and r.in_sync and r.log_dir_id in alive_log_dirs]
    leader = _leader_among(state, ready)
    if len(ready) < len(found) or leader is None:
        return None
    return _assigned(state, ready, leader)


def cancel(state: PartitionState, reassignment: Reassignment, alive_log_dirs: Collection[int]) -> PartitionState:
    """Return the partition with its original AR. If an added replica leads, an original one becomes the leader.

    As in Kafka, raises InvalidReplicationAssignmentError if that could lose records: no original replica is alive and
    in the ISR with every record.
    """
    found = [state.replica(broker_id) for broker_id in reassignment.original]
    originals = [replica for replica in found if replica is not None]
    leader = _leader_among(state, [r for r in originals if r.in_sync and r.log_dir_id in alive_log_dirs])
    if leader is None:
        raise InvalidReplicationAssignmentError(
            f"replicas: none of the original {list(reassignment.original)} is alive and in sync with every record;"
            " going back to them could lose what only those that were added have"
        )
    return _assigned(state, originals, leader)


def _leader_among(state: PartitionState, ready: Sequence[Replica]) -> int | None:
    """Return the current leader if it is one of the ready replicas, or else the first of these with every record."""
    if any(replica.broker_id == state.leader for replica in ready):
        return state.leader
    return next((r.broker_id for r in ready if r.log_end_offset == state.log_end_offset), None)


def _assigned(state: PartitionState, replicas: Sequence[Replica], leader: int | None) -> PartitionState:
    """Return the state with these replicas as its AR. `leader` must have every record."""
    left = {replica.broker_id for replica in state.replicas} - {replica.broker_id for replica in replicas}
    return with_replicas(state, replicas)._replace(
        leader=leader,
        leader_epoch=state.leader_epoch + (bool(left) or leader != state.leader),
        partition_epoch=state.partition_epoch + 1,
    )
