"""Commits in the background run in order, and those that were asked for end before their partitions are revoked."""

import threading

import pytest
from kafka.structs import TopicPartition

from spark_log.clients.consume.background import Background
from spark_log.clients.consume.consumer_settings import ConsumerSettings
from spark_log.clients.consume.offset_commits import Commits
from tests.support.waiting import wait_until

P0 = TopicPartition("t", 0)


@pytest.mark.parametrize("auto", [False, True])
def test_queued_commits_end_before_a_revocation(auto):
    background, begin, written = Background("test"), threading.Event(), []
    commits = Commits(ConsumerSettings(group_id="g", enable_auto_commit=auto), background, written.append)
    background.submit(lambda: begin.wait(60))
    commits.later({P0: (1, "", -1)})
    finishing = threading.Thread(target=commits.finish, args=({P0: (2, "", -1)},))
    finishing.start()
    wait_until(lambda: background._tasks.qsize() == 2, "it waits behind the commit")
    begin.set()
    finishing.join(60)
    assert written == [{P0: (1, "", -1)}, *([{P0: (2, "", -1)}] if auto else [])]
    background.close(10)


def test_the_callbacks_of_commits_that_have_ended_are_called_before_a_revocation():
    background, called = Background("test"), []
    commits = Commits(ConsumerSettings(group_id="g", enable_auto_commit=False), background, lambda _: None)
    future = commits.later({P0: (1, "", -1)}, lambda offsets, outcome: called.append(outcome))
    wait_until(lambda: future.is_done, "the commit ends")
    commits.finish({})
    assert called == [None]
    background.close(10)
