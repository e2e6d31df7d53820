"""The new offset of a reset, the values of a commit, and the names of groups and members."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import OffsetAndMetadata

from spark_log.config import ClusterSettings
from spark_log.errors import (
    IllegalArgumentError,
    InvalidConfigurationError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    OffsetMetadataTooLargeError,
)
from spark_log.groups.committed_offsets import Commit, check_commits
from spark_log.groups.group_names import check_group_id, check_instance_id, check_session_timeout
from spark_log.groups.group_operations import AtTime, Earliest, Exactly, Latest, ShiftBy, reset_offset
from spark_log.ids import TopicPartition
from spark_log.log.segments.slices import Positions

LIMITS = Positions(10, 20)
SETTINGS = ClusterSettings()


@pytest.mark.parametrize(
    ("to", "committed", "at_time", "offset"),
    [
        (Earliest(), None, None, 10),
        (Latest(), 12, None, 20),
        (AtTime(5), None, 13, 13),
        (AtTime(5), 12, None, 20),
        (AtTime(5), None, 3, 10),
        (ShiftBy(3), 12, None, 15),
        (ShiftBy(-1), 12, None, 11),
        (ShiftBy(-100), 12, None, 10),
        (ShiftBy(100), 12, None, 20),
        (Exactly(0), None, None, 10),
        (Exactly(14), 12, None, 14),
        (Exactly(2**63 - 1), None, None, 20),
    ],
)
def test_reset_offset_is_clamped_to_the_log(to, committed, at_time, offset):
    assert reset_offset(to, LIMITS, committed, at_time) == offset


@pytest.mark.parametrize("to", [ShiftBy(1), Exactly(-1), Exactly(True), Exactly(2**63), Exactly("3")])
def test_invalid_reset_is_refused(to):
    with pytest.raises(IllegalArgumentError):
        reset_offset(to, LIMITS, None, None)


def test_commits_accept_numbers_and_structs_of_kafka_python():
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
    given_ = {t0: 5, t1: OffsetAndMetadata(6, "m", 2)}
    assert check_commits(given_, SETTINGS) == {t0: Commit(5, "", -1), t1: Commit(6, "m", 2)}
    assert check_commits({t0: OffsetAndMetadata(6, None, None)}, SETTINGS) == {t0: Commit(6, "", -1)}


@given(
    st.one_of(st.integers(max_value=-1), st.integers(min_value=2**63), st.booleans(), st.floats(), st.text(), st.none())
)
def test_invalid_offset_is_refused_with_its_partition(offset):
    with pytest.raises(IllegalArgumentError, match="t-3"):
        check_commits({TopicPartition("t", 3): offset}, SETTINGS)


NOT_INT32 = st.one_of(st.integers(max_value=-2), st.integers(min_value=2**31), st.booleans(), st.floats(), st.text())


@given(NOT_INT32 | st.binary())
def test_invalid_leader_epoch_is_refused_with_its_partition(epoch):
    with pytest.raises(IllegalArgumentError, match=r"leader epoch.*t-3"):
        check_commits({TopicPartition("t", 3): OffsetAndMetadata(1, "", epoch)}, SETTINGS)


@pytest.mark.parametrize("partition", [True, 1.0, "1", b"1", None, 2**31])
def test_partition_that_is_not_an_integer_is_refused_with_its_topic(partition):
    with pytest.raises(IllegalArgumentError, match=r"partition.*'t'"):
        check_commits({TopicPartition("t", partition): 1}, SETTINGS)


def test_metadata_of_a_commit_is_limited_in_bytes():
    here = TopicPartition("t", 0)
    check_commits({here: OffsetAndMetadata(1, "x" * 4096, -1)}, SETTINGS)
    with pytest.raises(OffsetMetadataTooLargeError, match=r"4098 bytes.*4096"):
        check_commits({here: OffsetAndMetadata(1, "é" * 2049, -1)}, SETTINGS)
    for bad in ("\ud800", b"bytes", 5):
        with pytest.raises(IllegalArgumentError, match="metadata"):
            check_commits({here: OffsetAndMetadata(1, bad, -1)}, SETTINGS)


@pytest.mark.parametrize("bad", ["", None, 5, "g" * 250, "a\0b", "\ud800"])
def test_invalid_group_ids_are_refused(bad):
    assert check_group_id("any thing ☕") == "any thing ☕"
    with pytest.raises(InvalidGroupIdError, match="group_id"):
        check_group_id(bad)


@pytest.mark.parametrize("bad", ["", 5, "a b", "i" * 250, ".."])
def test_invalid_instance_ids_are_refused(bad):
    check_instance_id(None)
    check_instance_id("one.two-3")
    with pytest.raises(InvalidConfigurationError, match="group_instance_id"):
        check_instance_id(bad)


@pytest.mark.parametrize("bad", [99, 30 * 60 * 1000 + 1, True, "6000", None, 6000.0])
def test_session_timeouts_outside_the_limits_are_refused(bad):
    check_session_timeout(100, SETTINGS)
    check_session_timeout(30 * 60 * 1000, SETTINGS)
    with pytest.raises(InvalidSessionTimeoutError, match="session_timeout_ms"):
        check_session_timeout(bad, SETTINGS)
