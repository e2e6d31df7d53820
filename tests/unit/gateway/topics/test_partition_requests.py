from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from kafka.protocol.admin import DescribeLogDirsRequest, ElectionType, ElectLeadersRequest

from spark_log.errors import MetadataStoreUnavailableError
from spark_log.gateway.topics.cluster_requests import describe_log_dirs
from spark_log.gateway.topics.partition_requests import elect_leaders, epoch_end, page_of
from spark_log.log.partitions.replication_rules import Truncation

COUNTS = {"b": 3, "a": 2, "missing": 0}


def test_pages_cover_all_partitions_in_order():
    begin, seen = None, []
    while True:
        page = page_of(COUNTS, begin, 2)
        assert sum(last - first for _, first, last in page.topics) <= 2
        seen += [(name, number) for name, first, last in page.topics for number in range(first, last)]
        names = [name for name, _, _ in page.topics]
        if page.next is None:
            break
        assert page.next != begin
        begin = page.next
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]
    assert names[-1] == "missing"


@pytest.mark.parametrize(
    ("begin", "limit", "expected"),
    [
        (None, 100, ([("a", 0, 2), ("b", 0, 3), ("missing", 0, 0)], None)),
        (("b", 1), 1, ([("b", 1, 2)], ("b", 2))),
        (("b", -5), 0, ([("b", 0, 1)], ("b", 1))),
        (("aa", 7), 3, ([("b", 0, 3)], ("missing", 0))),
    ],
)
def test_page_begins_at_the_cursor(begin, limit, expected):
    assert page_of(COUNTS, begin, limit) == expected


@pytest.mark.parametrize(
    ("epoch", "known_epoch", "expected"),
    [
        (0, -1, (0, 0, 10)),
        (1, 4, (0, 1, 20)),
        (3, 4, (0, 3, 20)),
        (4, 4, (0, 4, 30)),
        (5, 4, (0, -1, -1)),
        (-1, 4, (0, -1, -1)),
        (1, 3, (74, -1, -1)),
        (1, 5, (75, -1, -1)),
    ],
)
def test_end_of_an_epoch_is_where_a_later_election_truncated(epoch, known_epoch, expected):
    truncations = [Truncation(1, 10), Truncation(4, 20)]
    assert epoch_end(epoch, known_epoch, 4, 30, truncations) == expected


UNAVAILABLE = Mock(side_effect=MetadataStoreUnavailableError("no answer"))
COORDINATOR_NOT_AVAILABLE = 15


def test_elections_that_fail_have_their_error_in_each_version():
    """Version 0 has no error code of the whole response."""
    kind = ElectLeadersRequest.TopicPartitions
    topics = [kind(topic="t", partitions=[0, 7]), kind(topic="u", partitions=[3])]
    services = SimpleNamespace(stores=SimpleNamespace(of_partitions=UNAVAILABLE))

    def answer(version):
        fields = {"election_type": ElectionType.PREFERRED, "topic_partitions": topics, "timeout_ms": 1_000}
        return elect_leaders(services, ElectLeadersRequest(version=version, **fields), None)

    assert answer(1).error_code == COORDINATOR_NOT_AVAILABLE
    codes = [
        (result.topic, each.partition_id, each.error_code)
        for result in answer(0).replica_election_results
        for each in result.partition_result
    ]
    assert codes == [(name, number, COORDINATOR_NOT_AVAILABLE) for name, number in (("t", 0), ("t", 7), ("u", 3))]


def test_log_dirs_that_cannot_be_described_have_their_error_in_each_version():
    services = SimpleNamespace(live_gateways=UNAVAILABLE)
    for version in (1, 2):
        [log_dir] = describe_log_dirs(services, DescribeLogDirsRequest(version=version, topics=None), None).results
        assert log_dir.error_code == COORDINATOR_NOT_AVAILABLE
    described = describe_log_dirs(services, DescribeLogDirsRequest(version=3, topics=None), None)
    assert (described.error_code, described.results) == (COORDINATOR_NOT_AVAILABLE, [])
