"""The model of replication can fail: each rule broken in turn, and the model finds it.

A mutant is a function that breaks one thing, by `monkeypatch.setattr`, in the rules or in what the model has of the
shells. The shortest trace that shows each mutant is in `replication_traces` and is replayed. `make test-long` searches
for such traces: for some in a corner of the model, the same machine with only the steps that matter, since these steps
seldom come together.
"""

import inspect
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import INITIALIZE_RULE_MARKER, INVARIANT_MARKER, RULE_MARKER, run_state_machine_as_test

from spark_log.log.append import rules
from spark_log.log.partitions import replication_rules
from spark_log.log.partitions.replication_rules import advance_follower, fail_over, lose_files, rewrite
from spark_log.replication.controller import reassignment_rules
from tests.unit.log.partitions.replication_traces import TRACES
from tests.unit.log.partitions.test_replication_model import ReplicatedPartition

SEARCH = settings(
    max_examples=20_000,  # a step that is seldom is found after a thousand, and now and then after several
    stateful_step_count=40,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def with_ends_of(state, before, brokers):
    """The state, but that these brokers' replicas end where they ended before."""
    ends = {r.broker_id: r.log_end_offset for r in before.replicas if r.broker_id in brokers}
    replicas = tuple(r._replace(log_end_offset=ends.get(r.broker_id, r.log_end_offset)) for r in state.replicas)
    return state._replace(replicas=replicas)


def with_isr(state, isr):
    return state._replace(replicas=tuple(r._replace(in_sync=r.broker_id in isr) for r in state.replicas))


def furthest(current, replicas):
    """The high watermark, if it were that of the member of the ISR that has most."""
    return max([current, *(r.log_end_offset for r in replicas if r.in_sync)])


# Appending


def an_append_ignores_the_leader_epoch(patch):
    check = rules._check_leader
    patch(rules, "_check_leader", lambda state, batch: check(state, batch._replace(leader_epoch=None)))


def an_append_moves_the_watermark_past_the_isr(patch):
    patch(rules, "advanced_high_watermark", furthest)


def acks_all_does_not_wait_for_the_isr(patch):
    patch(rules, "_check_in_sync", lambda state, batch: None)


def a_duplicate_is_acknowledged_before_the_isr_has_it(patch):
    patch(rules, "_check_replicated", lambda state, batch, known: None)


# Elections


def the_watermark_moves_past_members_of_the_isr(patch):
    patch(replication_rules, "advanced_high_watermark", furthest)


def a_truncation_forgets_the_dedupe_rows(patch):
    patch(ReplicatedPartition, "forget_batches", lambda self, start: None)


def a_truncation_forgets_the_other_replicas(patch):
    led_by = replication_rules._led_by

    def mutant(state, leader, *, unclean):
        after, truncation = led_by(state, leader, unclean=unclean)
        others = {r.broker_id for r in state.replicas} - {leader.broker_id}
        return with_ends_of(after, state, others), truncation

    patch(replication_rules, "_led_by", mutant)


def a_leader_that_lacks_what_was_deleted_stays_behind_its_log(patch):
    led_by = replication_rules._led_by

    def behind(state, leader, *, unclean):
        after, truncation = led_by(state, leader, unclean=unclean)
        return with_ends_of(after, state, {leader.broker_id}), truncation

    patch(replication_rules, "_led_by", behind)


def an_election_does_not_begin_an_epoch(patch):
    def timeless(state, alive, *, unclean=False):
        after, truncation = fail_over(state, alive, unclean=unclean)
        return after._replace(leader_epoch=state.leader_epoch), truncation

    patch(replication_rules, "fail_over", timeless)


def any_replica_may_lead(patch):
    patch(replication_rules, "fail_over", lambda state, alive, *, unclean=False: fail_over(state, alive, unclean=True))


def an_offline_partition_forgets_its_isr(patch):
    def mutant(state, alive, *, unclean=False):
        after, truncation = fail_over(state, alive, unclean=unclean)
        return (with_isr(after, ()) if after.leader is None else after), truncation

    patch(replication_rules, "fail_over", mutant)


def the_preferred_leader_may_lack_records(patch):
    def mutant(state, alive):
        if state.leader is None or not state.replicas[0].in_sync or state.leader == state.replicas[0].broker_id:
            return state
        return replication_rules._led_by(state, state.replicas[0], unclean=False)[0]

    patch(replication_rules, "elect_preferred", mutant)


def a_dead_replica_may_lead(patch):
    def mutant(state, alive, *, unclean=False):
        return fail_over(state, {r.log_dir_id for r in state.replicas}, unclean=unclean)

    patch(replication_rules, "fail_over", mutant)


def a_stale_controller_may_act(patch):
    patch(ReplicatedPartition, "may_act", lambda self, term: True)


# The ISR


def a_copy_ignores_the_leader_epoch(patch):
    def timeless(state, progress, names_now, end, *, alive):
        return advance_follower(state, replace(progress, leader_epoch=state.leader_epoch), names_now, end, alive=alive)

    patch(replication_rules, "advance_follower", timeless)


def a_copy_ignores_that_segments_were_replaced(patch):
    def mutant(state, progress, names_now, end, *, alive):
        return advance_follower(state, progress, progress.names, end, alive=alive)

    patch(replication_rules, "advance_follower", mutant)


def a_copy_ignores_where_its_replica_ends_now(patch):
    def mutant(state, progress, names_now, end, *, alive):
        replica = state.replica(progress.broker_id)
        start = replica.log_end_offset if replica else progress.start
        return advance_follower(state, replace(progress, start=start), names_now, end, alive=alive)

    patch(replication_rules, "advance_follower", mutant)


def an_empty_replica_joins_the_isr(patch):
    def mutant(state, progress, names_now, end, *, alive):
        after = advance_follower(state, progress, names_now, end, alive=alive)
        return with_isr(after, after.isr | {progress.broker_id}) if alive else after

    patch(replication_rules, "advance_follower", mutant)


def a_dead_replica_joins_the_isr(patch):
    def mutant(state, progress, names_now, end, *, alive):
        return advance_follower(state, progress, names_now, end, alive=True)

    patch(replication_rules, "advance_follower", mutant)


def the_isr_shrinks_without_a_leader(patch):
    shrink_isr = replication_rules.shrink_isr

    def strict(state, brokers):
        after = shrink_isr(state._replace(leader=-1) if state.leader is None else state, brokers)
        return after._replace(leader=state.leader)

    patch(replication_rules, "shrink_isr", strict)


def a_replica_that_lost_files_stays_in_the_isr(patch):
    def lenient(state, broker_id, first_missing):
        return with_isr(lose_files(state, broker_id, first_missing), state.isr)

    patch(replication_rules, "lose_files", lenient)


def a_replica_that_lost_files_keeps_its_end(patch):
    patch(replication_rules, "lose_files", lambda state, broker_id, first_missing: state)


def a_replica_that_lost_files_stays_leader(patch):
    def lenient(state, broker_id, first_missing):
        return lose_files(state, broker_id, first_missing)._replace(leader=state.leader)

    patch(replication_rules, "lose_files", lenient)


def a_log_dir_that_comes_back_is_not_fenced(patch):
    patch(replication_rules, "fence_writers", lambda state: state)


# Maintenance


def a_rewrite_reaches_above_the_watermark(patch):
    def mutant(state, start, end, log_dirs, epoch):
        after = rewrite(state._replace(high_watermark=state.log_end_offset), start, end, log_dirs, epoch)
        return after and after._replace(high_watermark=state.high_watermark)

    patch(replication_rules, "rewrite", mutant)


def a_rewrite_ignores_the_partition_epoch(patch):
    def timeless(state, start, end, log_dirs, _epoch):
        return rewrite(state, start, end, log_dirs, state.partition_epoch)

    patch(replication_rules, "rewrite", timeless)


def a_rewrite_ignores_the_isr(patch):
    def mutant(state, start, end, log_dirs, epoch):
        here = epoch == state.partition_epoch and end <= state.high_watermark and not state.isr
        return state if here else rewrite(state, start, end, log_dirs, epoch)

    patch(replication_rules, "rewrite", mutant)


def a_rewrite_leaves_fewer_copies_than_were_promised(patch):
    def mutant(state, start, end, log_dirs, epoch):
        after = rewrite(state._replace(min_insync_replicas=1), start, end, log_dirs, epoch)
        return after and after._replace(min_insync_replicas=state.min_insync_replicas)

    patch(replication_rules, "rewrite", mutant)


def a_rewrite_ignores_replicas_without_the_file(patch):
    def mutant(state, start, end, log_dirs, epoch):
        after = rewrite(state, start, end, log_dirs, epoch)
        return after and with_ends_of(after, state, {1, 2, 3, 4})

    patch(replication_rules, "rewrite", mutant)


# Reassignment


def a_reassignment_finishes_before_the_target_is_in_sync(patch):
    def mutant(state, under_way, alive):
        found = [state.replica(broker) for broker in under_way.target]
        ready = [r for r in found if r.in_sync] or found
        return reassignment_rules._assigned(
            state, found, reassignment_rules._leader_among(state, ready) or ready[0].broker_id
        )

    patch(reassignment_rules, "finish", mutant)


def a_reassignment_makes_a_leader_that_lacks_records(patch):
    def mutant(state, ready):
        here = [r.broker_id for r in ready]
        return state.leader if state.leader in here else next(iter(here), None)

    patch(reassignment_rules, "_leader_among", mutant)


def a_cancelled_reassignment_ignores_the_leader(patch):
    def mutant(state, under_way, alive):
        return reassignment_rules._assigned(state, [state.replica(b) for b in under_way.original], state.leader)

    patch(reassignment_rules, "cancel", mutant)


def a_replica_leaves_within_its_leader_epoch(patch):
    assigned = reassignment_rules._assigned

    def timeless(state, replicas, leader):
        after = assigned(state, replicas, leader)
        return after._replace(leader_epoch=state.leader_epoch + (leader != state.leader))

    patch(reassignment_rules, "_assigned", timeless)


def a_new_replica_counts_as_whole(patch):
    def mutant(state, target, log_dirs, under_way=None):
        after, started = begin(state, target, log_dirs, under_way)
        added = {r.broker_id for r in after.replicas} - {r.broker_id for r in state.replicas}
        ends = dict.fromkeys(added, state.log_end_offset)
        replicas = tuple(r._replace(log_end_offset=ends.get(r.broker_id, r.log_end_offset)) for r in after.replicas)
        return after._replace(replicas=replicas), started

    begin = reassignment_rules.begin
    patch(reassignment_rules, "begin", mutant)


WRITERS = {"writer_writes", "writer_appends"}
FOLLOWERS = {"follower_copies", "follower_commits"}
MAINTENANCE = {"maintenance_writes", "maintenance_swaps"}
SWITCHES = {"reassignment_begins", "controller_finishes_the_reassignment"}
LOSSES = {"log_dir_loses_files", "controller_inspects_a_log_dir"}

CORNERS = {
    "the_preferred_leader_may_lack_records": WRITERS | SWITCHES | {"controller_elects_the_preferred_leader"},
    "a_copy_ignores_the_leader_epoch": WRITERS | FOLLOWERS | LOSSES | SWITCHES,
    "a_copy_ignores_that_segments_were_replaced": WRITERS | FOLLOWERS | MAINTENANCE | {"brokers_die"},
    "a_copy_ignores_where_its_replica_ends_now": WRITERS | FOLLOWERS | SWITCHES,
    "the_isr_shrinks_without_a_leader": WRITERS | LOSSES | {"controller_takes_laggards_out"},
    "a_log_dir_that_comes_back_is_not_fenced": WRITERS | LOSSES,
    "a_rewrite_reaches_above_the_watermark": WRITERS | MAINTENANCE,
    "a_rewrite_ignores_the_partition_epoch": WRITERS | MAINTENANCE | LOSSES,
    "a_rewrite_ignores_the_isr": WRITERS | MAINTENANCE | LOSSES | {"brokers_die"},
    "a_reassignment_makes_a_leader_that_lacks_records": WRITERS | FOLLOWERS | SWITCHES,
    "a_cancelled_reassignment_ignores_the_leader": WRITERS
    | FOLLOWERS
    | SWITCHES
    | {"brokers_die", "reassignment_is_cancelled"},
    "a_replica_leaves_within_its_leader_epoch": WRITERS | FOLLOWERS | SWITCHES,
}
"""The steps of the corner of the model in which a mutant is looked for; the others are looked for everywhere."""


def corner(steps):
    """The model with only these steps."""
    found = inspect.getmembers(ReplicatedPartition, lambda member: hasattr(member, RULE_MARKER))
    assert steps <= {name for name, _ in found}
    return type("Corner", (ReplicatedPartition,), {name: None for name, _ in found if name not in steps})


def replay(trace):
    """The steps of a trace with the invariants between them, up to the first step that its precondition forbids."""
    machine = ReplicatedPartition()
    invariants = [found for _, found in inspect.getmembers(machine, lambda member: hasattr(member, INVARIANT_MARKER))]
    for name, arguments in trace:
        step = getattr(machine, name)
        rule = getattr(step, RULE_MARKER, None) or getattr(step, INITIALIZE_RULE_MARKER)
        if not all(precondition(machine) for precondition in rule.preconditions):
            return
        step(**arguments)
        for check in invariants:
            check()


@pytest.mark.parametrize("mutant", TRACES)
def test_the_stored_trace_shows_the_mutant(mutant, monkeypatch):
    replay(TRACES[mutant])
    globals()[mutant](monkeypatch.setattr)
    with pytest.raises(AssertionError):
        replay(TRACES[mutant])


@pytest.mark.long
@pytest.mark.parametrize("mutant", TRACES)
def test_the_model_finds_the_mutant(mutant, monkeypatch):
    globals()[mutant](monkeypatch.setattr)
    machine = corner(CORNERS[mutant]) if mutant in CORNERS else ReplicatedPartition
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=SEARCH)
