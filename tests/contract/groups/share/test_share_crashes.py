"""Members of share groups that are killed: each record ends once, and the others have it when the lock has ended."""

import signal
import subprocess

import pytest

from spark_log import Consumer
from spark_log.groups.share import dead_letters
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.dead_letters import DeadLetters
from spark_log.groups.share.polling import SharePolls
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.maintenance.client_log import ClientLog
from tests.support.python_process import PythonProcess
from tests.support.share_members import ShareMember, move_lock_ends, only_offer, set_lock_ms
from tests.support.topics import fill, make
from tests.support.waiting import LIMIT_S

LOCK_MS = 700
COUNT = 5
GROUP = "workers"
LETTERS = {"errors.deadletterqueue.topic.name": "dlq.t"}


@pytest.fixture
def jobs(cluster, log):
    """Topic t with COUNT records, and its dead letter topic. Locks are short."""
    set_lock_ms(cluster, LOCK_MS)
    make(cluster, "t")
    make(cluster, "dlq.t", errors_deadletterqueue_group_enable="true")
    alter_group_configs(cluster.store, GROUP, {"share.auto.offset.reset": "earliest"})
    fill(log, "t", [COUNT])


@pytest.fixture
def survivor(cluster, jobs, monkeypatch):
    """A function that makes a member, which also writes the dead letters that it comes upon, without waiting for the
    process that archived their records.
    """
    monkeypatch.setattr(dead_letters, "_AGAIN_S", 0.0)
    made = []

    def make_member():
        made.append(DeadLetters(lambda: ClientLog(cluster)))
        return ShareMember(cluster, polls=SharePolls(cluster, ShareReads(cluster), dead_letters=made[-1]))

    yield make_member
    for letters in made:
        letters.close()


def killed(address, point, *commands):
    """Run a member until the failpoint kills it."""
    pipe = subprocess.PIPE
    arguments = ("-m", "tests.support.child_programs", "share_consumer", address, "t", GROUP)
    with PythonProcess(*arguments, failpoint=point, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        for command in commands:
            child.stdin.write(command + "\n")
            child.stdin.flush()
        assert child.wait(timeout=LIMIT_S) == -signal.SIGKILL, child.stderr.read()


def letters(address):
    """The offsets of the dead letters."""
    with Consumer("dlq.t", cluster=address, auto_offset_reset="earliest") as consumer:
        found = []
        while polled := consumer.poll(60_000 if len(found) < COUNT else 0):
            found += [int(dict(r.headers)["__dlq.errors.offset"]) for records in polled.values() for r in records]
        return found


def is_finished(cluster):
    return only_offer(cluster).start_offset == COUNT and only_offer(cluster).unfinished == 0


def take_over(cluster, member, deliveries):
    """Poll until the records come, and return their ranges. They come once, and not before their lock's end. Nothing
    else than this end wakes the poll, whose time limit a test does not reach.
    """
    ends_ms = only_offer(cluster).wake_ms
    acquired = member.poll(timeout_s=10 * LIMIT_S)
    assert cluster.store.now().lease_ms >= ends_ms
    [ranges] = acquired.values()
    assert [(r.first, r.end, r.deliveries) for r in ranges] == [(0, COUNT, deliveries)]
    return acquired


def test_records_of_a_member_killed_after_it_acquired_them_are_delivered_again(cluster, cluster_address, survivor):
    member = survivor()
    killed(cluster_address, "share.acquired", "poll")
    acquired = take_over(cluster, member, 2)
    assert set(member.acknowledge(acquired, AcknowledgeType.ACCEPT).errors.values()) == {None}
    assert is_finished(cluster) and member.poll() == {}


def test_acknowledgements_of_a_member_killed_before_their_answer_stay(cluster, cluster_address, survivor):
    killed(cluster_address, "share.acknowledged", "poll", "accept")
    assert is_finished(cluster)
    assert survivor().poll() == {}


@pytest.mark.parametrize("point", ["share.acknowledged", "share.archived"])
def test_rejected_records_of_a_killed_member_have_one_letter_each(cluster, cluster_address, survivor, point):
    alter_group_configs(cluster.store, GROUP, LETTERS)
    killed(cluster_address, point, "poll", "reject")
    assert only_offer(cluster).archiving == (COUNT if point == "share.acknowledged" else 0)
    member = survivor()
    while not is_finished(cluster):
        assert member.poll(timeout_s=0.1) == {}
    assert member.poll() == {}
    assert letters(cluster_address) == list(range(COUNT))


def test_records_that_kill_each_member_have_one_letter_each(cluster, cluster_address, survivor):
    alter_group_configs(cluster.store, GROUP, {**LETTERS, "share.delivery.count.limit": "2"})
    for _ in range(2):
        killed(cluster_address, "share.acquired", "poll")
        move_lock_ends(cluster, LOCK_MS)
    ends_ms = only_offer(cluster).wake_ms
    member = survivor()
    while not is_finished(cluster):
        assert member.poll(timeout_s=0.1) == {}
        assert cluster.store.now().lease_ms < ends_ms + 1000 * LIMIT_S
    assert letters(cluster_address) == list(range(COUNT))
