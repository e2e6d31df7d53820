"""The rules of groups: changes of members and topics, and who may commit."""

import pytest

from spark_log.errors import FencedInstanceIdError, IllegalGenerationError, UnknownMemberIdError
from spark_log.groups.consumer.rules import Group, TopicFacts, check_commit, check_member, depart, notice_topics
from spark_log.ids import TopicPartition

T = frozenset({"t"})
P1 = TopicPartition("t", 1)


def test_departure_of_the_last_member_leaves_no_stale_target():
    assert depart(Group(5, 5), left=0) == Group(6, 6)
    assert depart(Group(5, 5), left=1) == Group(6, 5)


@pytest.mark.parametrize("now", [{}, {"t": TopicFacts(1, 3)}, {"t": TopicFacts(2, 2)}])
def test_deleted_enlarged_or_recreated_topic_starts_a_generation(now):
    assumed = {"t": TopicFacts(1, 2)}
    assert notice_topics(Group(4, 4), assumed, now, T) == Group(5, 4)
    assert notice_topics(Group(4, 4), assumed, assumed, T) == Group(4, 4)
    assert notice_topics(Group(4, 3), assumed, now, T) == Group(4, 3), "stale already"


def test_only_a_live_member_of_the_current_generation_may_commit():
    check_commit("g", 3, 3, {})
    with pytest.raises(IllegalGenerationError, match="generation 2"):
        check_commit("g", 3, 2, {})
    with pytest.raises(IllegalGenerationError, match="t-1 belongs to m"):
        check_commit("g", 3, 3, {P1: "m"})
    check_member("g", "m", live=True, fenced=False)
    with pytest.raises(UnknownMemberIdError):
        check_member("g", "m", live=False, fenced=False)
    with pytest.raises(FencedInstanceIdError):
        check_member("g", "m", live=False, fenced=True)
