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
