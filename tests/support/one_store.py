"""Contract tests that do not run in a cluster of two stores (SPARK_LOG_TEST_STORES=two).

Share groups read topics of the home store only. The other tests read or change rows of the home store, which in that
cluster are those of the data store, or expect one snapshot or one transaction of all.
"""

ONE_STORE_FILES = frozenset(
    {
        "test_gateway_bank.py",
        "test_gateway_error_messages.py",
        "test_gateway_sequences.py",
        "test_gateway_share_groups.py",
        "test_group_watches.py",
        "test_polls_together.py",
        "test_dead_letters.py",
        "test_facts.py",
        "test_redrive.py",
        "test_share_admin.py",
        "test_share_consumers.py",
        "test_share_crashes.py",
        "test_share_failover.py",
        "test_share_growth.py",
        "test_share_members.py",
        "test_share_pauses.py",
        "test_share_polls.py",
        "test_share_reads.py",
        "test_share_retention.py",
        "test_share_rewrites.py",
        "test_share_transactions.py",
        "test_replicated_append.py",
        "test_unappended_files.py",
    }
)
ONE_STORE_TESTS = frozenset(
    {
        # of settings, or of offsets and fencing tokens only, which are at home
        "test_abort_wakes_those_who_wait_for_its_offsets",
        "test_deleted_offsets_are_not_committed_by_an_open_transaction",
        "test_empty_transactions_and_transactions_of_offsets_only",
        "test_offset_is_unstable_until_a_transaction_that_has_timed_out_is_aborted",
        "test_offsets_of_a_request_are_written_by_one_statement",
        "test_only_the_newest_fencing_token_may_act",
        "test_position_waits_for_the_end_of_the_transaction",
        "test_settings_that_exclude_transactions_are_refused",
        # one snapshot of records and offsets
        "test_a_reader_never_sees_part_of_a_transaction",
        # only home knows the time-outs of transactions: a data store takes records until home has aborted
        "test_a_transaction_beyond_its_timeout_takes_no_record",
        # others
        "test_a_copy_in_a_log_dir_without_a_replica_is_left_to_reassignment",
        "test_a_dry_run_reports_the_work_of_a_run_and_changes_nothing",
        "test_a_failing_partition_does_not_stop_retention_of_the_others",
        "test_a_file_is_kept_while_a_delta_table_lists_it",
        "test_a_file_that_was_merged_soon_is_kept_for_a_shorter_time",
        "test_a_file_whose_write_id_was_removed_is_not_appended",
        "test_a_leader_without_the_deleted_segments_begins_at_the_log_start",
        "test_a_replica_that_was_offline_skips_deleted_segments",
        "test_a_retired_file_is_kept_for_its_readers_and_then_deleted_in_every_log_dir",
        "test_a_segment_emptied_by_compaction_expires_by_its_append_time",
        "test_a_spark_batch_is_appended_once_and_a_copied_checkpoint_is_an_error",
        "test_an_id_that_was_forgotten_belongs_to_nobody",
        "test_an_offline_log_dir_does_not_stop_the_others_and_is_cleaned_when_it_returns",
        "test_an_operator_aborts_a_transaction",
        "test_an_unfinished_file_that_clean_up_deletes_fails_its_append",
        "test_appends_and_reads_during_retention",
        "test_commit_fails_if_the_log_has_another_batch_with_a_sequence_of_it",
        "test_concurrent_appends_lose_no_file_that_they_named",
        "test_each_partition_has_its_own_outcome_unless_the_request_is_atomic",
        "test_files_of_a_deleted_topic_are_kept_for_its_readers_and_other_topics_stay",
        "test_flush_messages_limits_the_unforced_records",
        "test_folders_of_no_known_topic_are_deleted_if_they_are_ours_and_old",
        "test_foreign_files_and_files_in_use_are_kept",
        "test_invalid_acknowledgements_change_nothing",
        "test_many_segments_are_dropped_in_short_transactions",
        "test_nothing_is_deleted_in_a_swapped_log_dir",
        "test_orphans_are_deleted_once_no_append_can_name_them",
        "test_requests_that_fit_no_share_session",
        "test_retention_by_size_keeps_at_least_retention_bytes",
        "test_segments_of_older_versions_below_the_log_start_are_dropped",
        "test_several_batches_of_a_producer_in_one_flush",
        "test_share_sessions_need_the_right_to_read_at_each_request",
        "test_the_codec_of_the_producer_applies_to_topics_without_their_own",
        "test_the_first_micro_batch_with_expired_records_warns",
        "test_the_same_first_spark_batch_from_two_drivers_at_once_is_appended_once",
        "test_transactions_are_listed_and_described",
        "test_transfers_are_atomic_when_clients_are_killed_at_any_point",
        "test_transfers_are_atomic_when_clients_are_stopped_with_an_open_transaction",
    }
)
