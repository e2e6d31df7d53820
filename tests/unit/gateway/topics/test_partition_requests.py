import pytest

from spark_log.gateway.topics.partition_requests import epoch_end, page_of
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
