"""The shortest trace that shows each mutant of the replication model: found and shrunk by Hypothesis.

A trace is a list of steps of `ReplicatedPartition` with their arguments. `make test-long` searches for new ones.
"""

from typing import Any

Step = tuple[str, dict[str, Any]]


def step(name: str, **arguments: Any) -> Step:
    return name, arguments


TRACES: dict[str, list[Step]] = {
    "an_append_ignores_the_leader_epoch": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("reassignment_begins", at_once=False, cleaned=False, count=1, order=[1, 2, 3, 4]),
        step("producer_retries", acks=1, inline=False),
        step("maintenance_writes", also=set(), at_once=False, count=1, first=0),
        step("reassignment_begins", at_once=True, cleaned=False, count=1, order=[1, 2, 3, 4]),
        step("writer_appends", which=0),
    ],
    "an_append_moves_the_watermark_past_the_isr": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
    ],
    "acks_all_does_not_wait_for_the_isr": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False), (1, "all", False)]),
    ],
    "a_duplicate_is_acknowledged_before_the_isr_has_it": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("producer_retries", acks="all", inline=False),
        step("writer_appends", which=0),
    ],
    "the_watermark_moves_past_members_of_the_isr": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("reassignment_begins", at_once=True, cleaned=False, count=2, order=[1, 2, 3, 4]),
    ],
    "a_truncation_forgets_the_dedupe_rows": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("brokers_die", brokers={1}, noticed=True),
    ],
    "a_truncation_forgets_the_other_replicas": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("brokers_die", brokers={1}, noticed=True),
    ],
    "a_leader_that_lacks_what_was_deleted_stays_behind_its_log": [
        step("create", unclean=True, min_isr=1, first=[(1, 1, False), (1, 1, False)]),
        step("brokers_die", brokers={2, 3}, noticed=True),
        step("records_are_deleted", count=1),
        step("brokers_return", brokers={2}),
        step("brokers_die", brokers={1}, noticed=True),
    ],
    "an_election_does_not_begin_an_epoch": [
        step("create", unclean=False, min_isr=1, first=[]),
        step("brokers_die", brokers={1}, noticed=True),
    ],
    "any_replica_may_lead": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("controller_takes_laggards_out", brokers={1, 2}, late=False),
        step("brokers_die", brokers={1, 3}, noticed=True),
    ],
    "an_offline_partition_forgets_its_isr": [
        step("create", unclean=False, min_isr=1, first=[]),
        step("brokers_die", brokers={1, 2, 3}, noticed=True),
    ],
    "the_preferred_leader_may_lack_records": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("reassignment_begins", at_once=True, cleaned=False, count=2, order=[2, 1, 3, 4]),
        step("controller_elects_the_preferred_leader", late=False),
    ],
    "a_dead_replica_may_lead": [
        step("create", unclean=False, min_isr=1, first=[]),
        step("brokers_die", brokers={1}, noticed=True),
    ],
    "a_stale_controller_may_act": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("log_dir_loses_files", broker=1, noticed=True, which=None),
        step("controller_elects", late=True, unclean=False),
    ],
    "a_copy_ignores_the_leader_epoch": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("follower_copies", at_once=False, most=1, which=0),
        step("controller_inspects_a_log_dir", broker=1),
        step("follower_commits", which=0),
    ],
    "a_copy_ignores_that_segments_were_replaced": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, True)]),
        step("brokers_die", brokers={1}, noticed=True),
        step("maintenance_writes", also=set(), at_once=False, count=1, first=0),
        step("maintenance_swaps", which=0),
        step("follower_copies", at_once=False, most=1, which=0),
        step("maintenance_writes", also=set(), at_once=False, count=1, first=0),
        step("maintenance_swaps", which=0),
        step("follower_commits", which=0),
    ],
    "a_copy_ignores_where_its_replica_ends_now": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("follower_copies", at_once=False, most=1, which=0),
        step("follower_commits", which=0),
        step("follower_copies", at_once=False, most=1, which=0),
        step("follower_commits", which=0),
        step("reassignment_begins", at_once=False, cleaned=False, count=1, order=[1, 2, 3, 4]),
        step("writer_writes", acks=0, at_once=False, count=1, failing=None, idempotent=False, inline=False),
        step("writer_appends", which=0),
        step("writer_writes", acks=0, at_once=False, count=1, failing=None, idempotent=False, inline=False),
        step("writer_appends", which=0),
        step("follower_copies", at_once=False, most=2, which=0),
        step("follower_copies", at_once=False, most=2, which=1),
        step("reassignment_begins", at_once=False, cleaned=False, count=1, order=[1, 2, 3, 4]),
        step("follower_commits", which=0),
        step("follower_copies", at_once=False, most=1, which=0),
        step("follower_commits", which=0),
        step("follower_commits", which=0),
    ],
    "an_empty_replica_joins_the_isr": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False), (1, 1, False)]),
        step("controller_takes_laggards_out", brokers={1, 2, 3}, late=False),
        step("follower_copies", at_once=True, most=1, which=0),
    ],
    "a_dead_replica_joins_the_isr": [
        step("create", unclean=False, min_isr=1, first=[]),
        step("brokers_die", brokers={1}, noticed=False),
        step("controller_elects", late=False, unclean=False),
        step("follower_copies", at_once=False, most=1, which=0),
        step("follower_commits", which=0),
    ],
    "the_isr_shrinks_without_a_leader": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("log_dir_loses_files", broker=1, noticed=False, which=None),
        step("controller_inspects_a_log_dir", broker=1),
        step("controller_takes_laggards_out", brokers={1, 2, 3}, late=False),
    ],
    "a_replica_that_lost_files_stays_in_the_isr": [
        step("create", unclean=False, min_isr=1, first=[]),
        step("writer_writes", acks=0, at_once=False, count=1, failing=None, idempotent=False, inline=True),
        step("maintenance_writes", also=set(), at_once=True, count=1, first=0),
        step("reassignment_begins", at_once=False, cleaned=False, count=1, order=[1, 2, 3, 4]),
        step("log_dir_loses_files", broker=1, noticed=True, which=None),
    ],
    "a_replica_that_lost_files_keeps_its_end": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("log_dir_loses_files", broker=1, noticed=True, which=None),
    ],
    "a_replica_that_lost_files_stays_leader": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("log_dir_loses_files", broker=1, noticed=True, which=None),
    ],
    "a_log_dir_that_comes_back_is_not_fenced": [
        step("create", unclean=False, min_isr=1, first=[]),
        step("writer_writes", acks=0, at_once=False, count=1, failing=None, idempotent=False, inline=False),
        step("log_dir_loses_files", broker=1, noticed=True, which=None),
        step("writer_appends", which=0),
    ],
    "a_rewrite_reaches_above_the_watermark": [
        step("create", unclean=False, min_isr=1, first=[]),
        step("writer_writes", acks=0, at_once=False, count=1, failing=None, idempotent=False, inline=False),
        step("writer_appends", which=0),
        step("maintenance_writes", also=set(), at_once=False, count=1, first=0),
        step("maintenance_swaps", which=0),
    ],
    "a_rewrite_ignores_the_partition_epoch": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, True)]),
        step("maintenance_writes", also=set(), at_once=False, count=1, first=0),
        step("log_dir_loses_files", broker=1, noticed=False, which=None),
        step("controller_inspects_a_log_dir", broker=1),
        step("maintenance_swaps", which=0),
    ],
    "a_rewrite_ignores_the_isr": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, True)]),
        step("maintenance_writes", also=set(), at_once=False, count=1, first=0),
        step("maintenance_swaps", which=0),
        step("brokers_die", brokers={1, 2}, noticed=True),
        step("log_dir_loses_files", broker=3, noticed=True, which=None),
        step("maintenance_writes", also=set(), at_once=True, count=1, first=0),
    ],
    "a_rewrite_leaves_fewer_copies_than_were_promised": [
        step("create", unclean=False, min_isr=2, first=[]),
        step("brokers_die", brokers={1, 2}, noticed=True),
        step("writer_writes", acks=0, at_once=True, count=1, failing=None, idempotent=False, inline=False),
        step("maintenance_writes", also=set(), at_once=True, count=1, first=0),
    ],
    "a_rewrite_ignores_replicas_without_the_file": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, True), (1, 1, False)]),
        step("controller_takes_laggards_out", brokers={1, 2}, late=False),
        step("controller_inspects_a_log_dir", broker=1),
        step("maintenance_writes", also=set(), at_once=True, count=1, first=0),
    ],
    "a_reassignment_finishes_before_the_target_is_in_sync": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("reassignment_begins", at_once=True, cleaned=False, count=1, order=[2, 1, 3, 4]),
    ],
    "a_reassignment_makes_a_leader_that_lacks_records": [
        step("create", unclean=False, min_isr=1, first=[]),
        step("reassignment_begins", at_once=False, cleaned=False, count=1, order=[1, 2, 3, 4]),
        step("controller_finishes_the_reassignment", cleaned=False, late=False),
        step("reassignment_begins", at_once=False, cleaned=False, count=3, order=[1, 2, 3, 4]),
        step("follower_copies", at_once=False, most=1, which=0),
        step("follower_commits", which=0),
        step("follower_copies", at_once=True, most=1, which=0),
        step("controller_finishes_the_reassignment", cleaned=False, late=False),
        step("reassignment_begins", at_once=False, cleaned=False, count=1, order=[2, 1, 3, 4]),
        step("writer_writes", acks=0, at_once=False, count=1, failing=None, idempotent=False, inline=False),
        step("writer_appends", which=0),
        step("controller_finishes_the_reassignment", cleaned=False, late=False),
    ],
    "a_cancelled_reassignment_ignores_the_leader": [
        step("create", unclean=True, min_isr=1, first=[]),
        step("reassignment_begins", at_once=False, cleaned=False, count=1, order=[4, 2, 3, 1]),
        step("brokers_die", brokers={1, 2, 3}, noticed=True),
        step("reassignment_is_cancelled", cleaned=False),
    ],
    "a_replica_leaves_within_its_leader_epoch": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, False)]),
        step("follower_copies", at_once=False, most=1, which=0),
        step("follower_commits", which=0),
        step("follower_copies", at_once=False, most=1, which=0),
        step("follower_commits", which=0),
        step("reassignment_begins", at_once=False, cleaned=False, count=1, order=[1, 2, 3, 4]),
        step("reassignment_begins", at_once=False, cleaned=True, count=1, order=[2, 1, 3, 4]),
        step("controller_finishes_the_reassignment", cleaned=False, late=False),
        step("reassignment_begins", at_once=False, cleaned=False, count=1, order=[3, 2, 1, 4]),
        step("follower_copies", at_once=False, most=1, which=0),
        step("reassignment_begins", at_once=False, cleaned=False, count=2, order=[2, 3, 1, 4]),
        step("reassignment_begins", at_once=False, cleaned=True, count=1, order=[1, 2, 3, 4]),
        step("reassignment_begins", at_once=False, cleaned=False, count=1, order=[3, 2, 1, 4]),
        step("follower_commits", which=0),
    ],
    "a_new_replica_counts_as_whole": [
        step("create", unclean=False, min_isr=1, first=[(1, 1, True), (1, 1, False)]),
        step("reassignment_begins", at_once=False, cleaned=False, count=2, order=[1, 4, 3, 2]),
    ],
}
