"""Compaction compared with a dictionary, over appends, clock steps, lost swaps, kills, merges and delete_records; and a
check that the model detects each missing rule.
"""

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.compaction import (
    last_offsets,
    passes,
    unit,
)
from spark_log.maintenance.compaction import local_compaction as task
from spark_log.maintenance.compaction.unit import Compacted
from spark_log.maintenance.rewrite import segment_rewrite
from tests.support.compaction_model import Append, Compact, ListElsewhere, Model, Tick, cases

_names = (f"t{number}" for number in itertools.count())
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster.init(str(tmp_path_factory.mktemp("model") / "cluster")) as cluster:
        yield cluster


def run(cluster, case):
    segment_bytes, lag_ms, steps = case
    with pytest.MonkeyPatch.context() as patch:
        Model.of(cluster, patch.setattr, next(_names), segment_bytes, lag_ms).run(steps)


@settings(max_examples=20, suppress_health_check=QUIET)
@given(cases)
def test_a_reader_always_sees_the_last_value_of_each_key(cluster, case):
    run(cluster, case)


# Each of these removes one rule of compaction; the model must detect it.


def the_first_of_each_key_stays(patch):
    def last_of_bucket(batches, schema, bucket, buckets):
        rows = pa.Table.from_batches(list(batches)).filter(pc.field("key").is_valid())
        return np.asarray(rows.group_by("key").aggregate([("offset", "min")]).column("offset_min"))

    patch(last_offsets, "_last_of_bucket", last_of_bucket)


def records_without_keys_stay(patch):
    def last_of_bucket(batches, schema, bucket, buckets):
        rows = pa.Table.from_batches(list(batches))
        grouped = rows.group_by("key").aggregate([("offset", "max")])
        return np.asarray(grouped.column("offset_max"))

    patch(last_offsets, "_last_of_bucket", last_of_bucket)


def tombstones_go_with_the_next_pass(patch):
    horizon = passes.tombstone_horizon
    patch(passes, "tombstone_horizon", lambda passes, now_ms, _: horizon(passes, now_ms, 0))


def tombstones_go_at_once(patch):
    patch(passes, "tombstone_horizon", lambda passes, now_ms, retention_ms: 1 << 40)


def tombstones_go_when_their_own_time_has_come(patch):
    """Independent of completed passes: older values may still be in the log."""

    def horizon(passes, now_ms, retention_ms):
        return 1 << 40 if passes and passes[0].at_ms <= now_ms - retention_ms else 0

    patch(passes, "tombstone_horizon", horizon)


def tombstones_wait_for_each_pass_again(patch):
    def remember(passes, done, retention_ms):
        return [each for each in passes if each.end_offset < done.end_offset] + [done]

    patch(passes, "remember", remember)


def tombstones_of_units_that_stay_are_not_counted(patch):
    patch(unit, "_tombstones", lambda unit, log_dirs: 0)


def tombstones_of_units_that_are_not_read_are_forgotten(patch):
    plan = passes.plan_pass

    def plan_pass(*arguments):
        planned = plan(*arguments)
        return planned and replace(planned, carried=0)

    patch(task, "plan_pass", plan_pass)


def a_pass_is_noted_though_a_swap_was_lost(patch):
    put = passes.Compacting.swap

    def swap(self, *arguments):
        put(self, *arguments)
        return True

    patch(passes.Compacting, "swap", swap)


def a_pass_is_noted_before_it_is_done(patch):
    run = task._run

    def note_first(context, planned, running):
        done = [Compacted(None, 1) for _ in planned.units]
        running.complete(planned, done)
        run(context, planned, running)

    patch(task, "_run", note_first)


def young_records_go_too(patch):
    real_cleanable = passes.cleanable

    def cleanable(segments, log_start, first_dirty, now_ms, _lag):
        return real_cleanable(segments, log_start, first_dirty, now_ms, 0)

    patch(passes, "cleanable", cleanable)


def a_pass_ends_above_the_files_that_it_skips(patch):
    find = passes._cleanable
    patch(passes, "_cleanable", lambda *arguments: replace(find(*arguments), skipped_from=None))


def offsets_close_ranks(patch):
    patch(segment_rewrite, "offset_deltas", lambda offsets, base: pa.array(np.arange(len(offsets))))


def a_pass_reads_its_first_unit_only(patch):
    find = task.find_last_offsets

    def find_last_offsets(topic, units, log_dirs):
        for each in units:
            yield from find(topic, [each], log_dirs)

    patch(task, "find_last_offsets", find_last_offsets)


IN_ONE_FILE, EACH_BY_ITSELF = "1000000", "14"


def appended(text, sealed=True):
    """`a` a record with key a, `-a` its tombstone, `~` one without a key."""
    return Append(tuple((None if word == "~" else word[-1], word[0] == "-") for word in text.split()), sealed)


NOW = Compact(force=True)
NOTICED_IN = [
    (the_first_of_each_key_stays, (IN_ONE_FILE, 0, [appended("a b a"), NOW])),
    (records_without_keys_stay, (IN_ONE_FILE, 0, [appended("a ~ b"), NOW])),
    (offsets_close_ranks, (IN_ONE_FILE, 0, [appended("a b a"), NOW])),
    (a_pass_reads_its_first_unit_only, (EACH_BY_ITSELF, 0, [appended("a"), appended("a b"), NOW])),
    (tombstones_go_at_once, (IN_ONE_FILE, 0, [appended("a -a b b"), NOW])),
    (tombstones_go_with_the_next_pass, (IN_ONE_FILE, 0, [appended("a -a b"), NOW, appended("b"), Tick(30), NOW])),
    (
        tombstones_go_when_their_own_time_has_come,
        (IN_ONE_FILE, 0, [appended("a b"), NOW, Tick(120), appended("-a b b", sealed=False), NOW]),
    ),
    (
        tombstones_wait_for_each_pass_again,
        (IN_ONE_FILE, 0, [appended("a -a"), NOW, Tick(70), NOW, Tick(70), NOW]),
    ),
    (tombstones_of_units_that_stay_are_not_counted, (IN_ONE_FILE, 0, [appended("-a"), NOW])),
    (
        tombstones_of_units_that_are_not_read_are_forgotten,
        (EACH_BY_ITSELF, 0, [appended("-a"), NOW, appended("b b"), NOW]),
    ),
    (a_pass_is_noted_though_a_swap_was_lost, (IN_ONE_FILE, 0, [appended("a b b"), Compact(force=True, lost_swap=0)])),
    (a_pass_is_noted_before_it_is_done, (IN_ONE_FILE, 0, [appended("a b b"), Compact(force=True, killed_at=1)])),
    (
        a_pass_ends_above_the_files_that_it_skips,
        (EACH_BY_ITSELF, 0, [appended("a b"), appended("a"), ListElsewhere(1), appended("a"), NOW]),
    ),
    (young_records_go_too, (IN_ONE_FILE, 60, [appended("a"), appended("a"), NOW])),
]


@pytest.mark.parametrize(("mutant", "case"), NOTICED_IN, ids=lambda it: getattr(it, "__name__", ""))
def test_the_model_detects_a_missing_rule(cluster, monkeypatch, mutant, case):
    run(cluster, case)
    mutant(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        run(cluster, case)
