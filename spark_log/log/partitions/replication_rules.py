"""Changes a partition's replicas, ISR, leader or offsets, one change in each function. Pure.

Invariants before and after each change (numbers 2, 4, 5 and 10 of docs/architecture/invariants.md):

    log_start_offset <= high_watermark <= log_end_offset of every member of the ISR <= log_end_offset
    the leader, if there is one, is in the ISR and has log_end_offset
    every segment below a replica's log_end_offset is whole in its log dir; log_end_offset is a segment boundary
    leader_epoch and partition_epoch only grow

Offsets are assigned in `log/append/rules.py`; every other change of a replica, the ISR or the leader is here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_log.errors import NotLeaderForPartitionError


class Replica(NamedTuple):
    """A replica of a partition. Every segment below `log_end_offset` is whole in its log dir."""

    broker_id: int
    log_end_offset: int
    in_sync: bool
    log_dir_id: int = 0


class PartitionState(NamedTuple):
    """The state of a partition. `replicas` are in AR order, the preferred leader first."""

    leader: int | None
    leader_epoch: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int
    tail_bytes: int
    change: int
    replicas: tuple[Replica, ...]
    min_insync_replicas: int = 1
    partition_epoch: int = 0
    log_start_offset: int = 0
    unclean_election: bool = False
    rewrites: int = 0

    def replica(self, broker_id: int) -> Replica | None:
        return next((replica for replica in self.replicas if replica.broker_id == broker_id), None)

    @property
    def isr(self) -> frozenset[int]:
        return frozenset(replica.broker_id for replica in self.replicas if replica.in_sync)


def advanced_high_watermark(current: int, replicas: Sequence[Replica]) -> int:
    """Return max(HW, min LEO over the ISR). The high watermark never decreases here."""
    return max(current, min((replica.log_end_offset for replica in replicas if replica.in_sync), default=current))


def with_replicas(state: PartitionState, replicas: Sequence[Replica]) -> PartitionState:
    """Return the state with these replicas and the resulting high watermark. `change` grows if they differ."""
    if tuple(replicas) == state.replicas:
        return state
    high_watermark = advanced_high_watermark(state.high_watermark, replicas)
    joined_or_left = {r.broker_id for r in replicas if r.in_sync} != state.isr
    return state._replace(
        replicas=tuple(replicas),
        high_watermark=high_watermark,
        partition_epoch=state.partition_epoch + joined_or_left,
        change=state.change + 1,  # a log dir's Delta table follows its own replica
    )


# Election -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truncation:
    """The removal of every record from `start_offset` on. The leader that was elected for `leader_epoch` lacks them, or
    an operator accepted a restored metadata store that lacks them.
    """

    leader_epoch: int
    start_offset: int


def fail_over(
    state: PartitionState, alive_log_dirs: Collection[int], *, unclean: bool = False
) -> tuple[PartitionState, Truncation | None]:
    """Remove dead replicas from the ISR, and elect a leader if the present one is dead.

    A leader that is alive stays. Otherwise the first live member of the ISR in AR order leads, and the log is truncated
    at its LEO: records that acks=1 acknowledged above it are lost. Without a live member of the ISR the partition goes
    offline and keeps its ISR, since only the members have every acknowledged record. If unclean election is allowed (by
    the topic, or `unclean`), the live replica with the most records leads instead, and acknowledged records may be
    lost. Returns the new state, and the truncation, if there was one.
    """
    alive = [replica for replica in state.replicas if replica.log_dir_id in alive_log_dirs]
    candidates = [replica for replica in alive if replica.in_sync]
    leader = next((replica for replica in candidates if replica.broker_id == state.leader), None)
    if leader is None and candidates:
        leader = candidates[0]
    dirty = leader is None and bool(alive) and (unclean or state.unclean_election)
    if dirty:
        leader = max(alive, key=lambda replica: replica.log_end_offset)  # the first of equals
    if leader is None:
        if state.leader is None:
            return state, None
        return fence_writers(state)._replace(leader=None), None
    members = {leader.broker_id} if dirty else {replica.broker_id for replica in candidates}
    shrunk = with_replicas(state, [r._replace(in_sync=r.broker_id in members) for r in state.replicas])
    if leader.broker_id == state.leader:
        return shrunk, None
    return _led_by(shrunk, leader, unclean=dirty)


def elect_preferred(state: PartitionState, alive_log_dirs: Collection[int]) -> PartitionState:
    """Let the first replica of AR lead, if it is alive, in the ISR and has every record. Nothing is truncated."""
    if not state.replicas or state.leader is None:
        return state
    first = state.replicas[0]
    ready = first.in_sync and first.log_dir_id in alive_log_dirs and first.log_end_offset == state.log_end_offset
    if first.broker_id == state.leader or not ready:
        return state
    return _led_by(state, first, unclean=False)[0]


def _led_by(state: PartitionState, leader: Replica, *, unclean: bool) -> tuple[PartitionState, Truncation | None]:
    """Make `leader` the leader in a new epoch. The log then ends at the leader's LEO."""
    # records below the log start offset are not needed, and their offsets are never assigned again
    end = max(leader.log_end_offset, state.log_start_offset)
    elected = state._replace(
        leader=leader.broker_id,
        leader_epoch=state.leader_epoch + 1,
        partition_epoch=state.partition_epoch + 1,
    )
    if leader.log_end_offset == end == state.log_end_offset:
        return elected, None
    assert unclean or end >= state.high_watermark, "a member of the ISR has everything below the high watermark"
    replicas = tuple(
        r._replace(log_end_offset=end if r.broker_id == leader.broker_id else min(r.log_end_offset, end))
        for r in state.replicas
    )
    truncated = elected._replace(
        replicas=replicas,
        log_end_offset=end,
        high_watermark=advanced_high_watermark(min(state.high_watermark, end), replicas),
        recovery_point=min(state.recovery_point, end),
        change=state.change + 1,
    )
    if end == state.log_end_offset:
        return truncated, None
    return truncated, Truncation(truncated.leader_epoch, end)


# Catching up --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopiedRange:
    """The segments that a replica has copied: `names` cover [start, end) and are whole in its log dir.

    `leader_epoch` and `log_dir_id` are the partition's and the replica's when the copy was planned. Segments below the
    log start offset may have been deleted: then `names` cover less.
    """

    broker_id: int
    leader_epoch: int
    start: int
    end: int
    names: tuple[str, ...]
    log_dir_id: int


def advance_follower(
    state: PartitionState, progress: CopiedRange, names_now: Sequence[str], end_with_blobs: int, *, alive: bool
) -> PartitionState:
    """Move the replica's LEO over the segments that it has copied and the blobs that follow, up to `end_with_blobs`.

    `names_now` are the segments that cover the range now, read under the row lock. Raises NotLeaderForPartitionError if
    an election has truncated them, or a merge has replaced them: the copy must be planned again. A replica that has
    every record joins the ISR, if it is alive.
    """
    replica = state.replica(progress.broker_id)
    if progress.leader_epoch != state.leader_epoch:
        raise NotLeaderForPartitionError(
            f"leader epoch {progress.leader_epoch} of the copy is not the current {state.leader_epoch}"
        )
    if (
        replica is None
        or (replica.log_dir_id, replica.log_end_offset) != (progress.log_dir_id, progress.start)
        or tuple(names_now) != progress.names
    ):
        raise NotLeaderForPartitionError(f"broker {progress.broker_id}: its replica changed during the copy")
    end = max(progress.end, end_with_blobs)
    moved = replica._replace(log_end_offset=end)
    if alive and end == state.log_end_offset:
        moved = moved._replace(in_sync=True)
    return with_replicas(state, [moved if each is replica else each for each in state.replicas])


def shrink_isr(state: PartitionState, broker_ids: Collection[int]) -> PartitionState:
    """Remove these members from the ISR, because they lagged too long. A member with every record stays.

    Without a leader the ISR stays as it is: otherwise its last members, which have every acknowledged record, could
    leave one after the other.
    """
    if state.leader is None:
        return state
    return with_replicas(
        state,
        [
            replica._replace(in_sync=False)
            if replica.broker_id in broker_ids and replica.log_end_offset < state.log_end_offset
            else replica
            for replica in state.replicas
        ],
    )


def lose_files(state: PartitionState, broker_id: int, first_missing: int) -> PartitionState:
    """Handle a log dir that came back without the replica's files from `first_missing` on (a segment boundary).

    The replica's LEO falls to `first_missing`. If this is below the high watermark, the replica leaves the ISR, even as
    the last member: it must not be elected as if it had every acknowledged record. If the replica led, the partition
    goes offline until the next election.
    """
    replica = state.replica(broker_id)
    if replica is None or first_missing >= replica.log_end_offset:
        return state
    in_sync = replica.in_sync and first_missing >= state.high_watermark
    fallen = replica._replace(log_end_offset=first_missing, in_sync=in_sync)
    after = with_replicas(state, [fallen if each is replica else each for each in state.replicas])
    if state.leader != broker_id:
        return after
    return after._replace(leader=None, leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1)


def fence_writers(state: PartitionState) -> PartitionState:
    """Refuse files that were written or copied before. A log dir that came back may be another one."""
    return state._replace(leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1)


def rewrite(
    state: PartitionState, start: int, end: int, log_dir_ids: Collection[int], partition_epoch: int
) -> PartitionState | None:
    """Replace the segments of [start, end) by files that are in these log dirs (sealing, merging, compaction).

    Returns None if that is not allowed: the leader or the ISR has changed since the files were planned; a member of the
    ISR lacks them; the range ends above the high watermark, where an election may still truncate; or fewer replicas are
    in sync than min.insync.replicas (or than all replicas, if there are fewer), the number of copies that acks=all
    promised. The LEO of a replica that lacks the files, or that ends within the range, falls to the start of the range.
    """
    in_sync = [replica.log_dir_id for replica in state.replicas if replica.in_sync]
    copies_min = max(1, min(state.min_insync_replicas, len(state.replicas)))
    if partition_epoch != state.partition_epoch or end > state.high_watermark:
        return None
    if len(in_sync) < copies_min or not set(in_sync) <= set(log_dir_ids):
        return None
    replicas = tuple(
        replica._replace(log_end_offset=start)
        if start < replica.log_end_offset and (replica.log_dir_id not in log_dir_ids or replica.log_end_offset < end)
        else replica
        for replica in state.replicas
    )
    return state._replace(replicas=replicas, change=state.change + 1, rewrites=state.rewrites + 1)
