"""A member or a gateway that is stopped beyond the end of its locks, and goes on: its acknowledgements are refused, and
the member that has the records then is not disturbed.
"""

import contextlib
import signal
import subprocess

import pytest

from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.rules import AcknowledgeType
from tests.support.gateway_wire import WireConnection
from tests.support.python_process import PythonProcess
from tests.support.server_processes import GatewayProcess
from tests.support.share_members import ShareMember, WireShareMember, acquired, only_offer, set_lock_ms
from tests.support.stores import each_on_sqlite_last_on_postgres
from tests.support.topics import fill, find, make
from tests.support.waiting import LIMIT_S

LOCK_MS = 300
COUNT = 5
INVALID_RECORD_STATE = 121


@pytest.fixture(autouse=True)
def short_locks(cluster, log):
    """Topic t with COUNT records, and short locks."""
    set_lock_ms(cluster, LOCK_MS)
    make(cluster, "t")
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    fill(log, "t", [COUNT])


def take_over(cluster, member):
    """Acquire the records after the lock's end. Their new locks are long, so that no load ends them."""
    set_lock_ms(cluster, 60_000)
    cluster.store.forget_settings()
    [ranges] = member.poll(timeout_s=LIMIT_S).values()
    assert [(r.first, r.end, r.deliveries) for r in ranges] == [(0, COUNT, 2)]
    assert ranges[0].until_ms - cluster.store.now().lease_ms > 30_000


def is_not_disturbed(cluster, member):
    """The member still has all records, and its acknowledgements count."""
    offer = only_offer(cluster)
    assert (offer.unfinished, offer.available, offer.start_offset) == (COUNT, 0, 0)
    [ranges] = (([part for part, _ in taken.parts]) for taken in member.last.taken)
    [key] = member.assigned
    assert set(member.acknowledge({key: ranges}, AcknowledgeType.ACCEPT).errors.values()) == {None}
    offer = only_offer(cluster)
    assert (offer.unfinished, offer.start_offset) == (0, COUNT)


@each_on_sqlite_last_on_postgres("kind", [("accept",), ("release",), ("reject",)])
def test_a_member_that_was_stopped_beyond_its_locks(cluster, cluster_address, kind):
    pipe = subprocess.PIPE
    other = ShareMember(cluster, member="m2")
    arguments = ("-m", "tests.support.child_programs", "share_consumer", cluster_address, "t", "workers")
    with PythonProcess(*arguments, stdin=pipe, stdout=pipe, text=True) as child:

        def say(command):
            child.stdin.write(command + "\n")
            child.stdin.flush()

        say("poll")
        assert child.stdout.readline().split() == ["polled", *(f"{n}:1" for n in range(COUNT))]
        child.send_signal(signal.SIGSTOP)
        child.wait_until_stopped()
        take_over(cluster, other)
        child.send_signal(signal.SIGCONT)
        say(kind)
        assert child.stdout.readline().split() == ["committed", "InvalidRecordStateError"]
        child.stdin.close()
        assert child.wait(timeout=30) == 0, "its close ends no lock of others"
    is_not_disturbed(cluster, other)


@each_on_sqlite_last_on_postgres("when", [("after its answer",), ("before its answer",)])
def test_a_gateway_that_was_stopped_beyond_the_locks_of_its_members(cluster, cluster_address, tmp_path, when):
    other = ShareMember(cluster, member="m2")
    gateway = GatewayProcess(tmp_path, cluster_address)
    gateway.start(failpoint="share.acquired:1:stop" if when == "before its answer" else None)
    with contextlib.ExitStack() as stack, WireConnection(gateway.port) as connection:
        stack.callback(gateway.kill)
        member = WireShareMember(connection, find(cluster, "t"))
        member.join()
        request = member.fetch_request(max_wait_ms=1_000)
        connection.send(request, 2)
        if when == "after its answer":
            answer = connection.receive(request, 2)
            gateway.signal(signal.SIGSTOP)
        gateway.wait_until_stopped()
        take_over(cluster, other)
        gateway.signal(signal.SIGCONT)
        if when == "before its answer":
            answer = connection.receive(request, 2)
        assert acquired(answer) == [(0, COUNT - 1, 1)]
        member.epoch = 1
        assert member.acknowledge((0, COUNT - 1, [1])) == INVALID_RECORD_STATE
        assert member.acknowledge((1, 1, [2])) == INVALID_RECORD_STATE
        closing = member.acknowledge_request([(0, COUNT - 1, [3])], share_session_epoch=-1)
        [topic] = member.send(closing).responses
        assert [part.error_code for part in topic.partitions] == [INVALID_RECORD_STATE]
    is_not_disturbed(cluster, other)


def test_an_acknowledgement_that_a_stopped_gateway_executes_late(cluster, cluster_address, tmp_path):
    """Meanwhile the same member has acquired the records again through another gateway: only the lock differs."""
    stopped, other = (GatewayProcess(tmp_path, cluster_address) for _ in range(2))
    with contextlib.ExitStack() as stack:
        for gateway in (stopped, other):
            stack.callback(gateway.kill)
        stopped.start()
        first = WireShareMember(stack.enter_context(WireConnection(stopped.port)), find(cluster, "t"))
        first.join()
        assert first.acquire() == [(0, COUNT - 1, 1)]
        stopped.signal(signal.SIGSTOP)
        stopped.wait_until_stopped()
        late = first.acknowledge_request([(0, COUNT - 1, [1])])
        first.connection.send(late, 2)
        set_lock_ms(cluster, 60_000)
        other.start()  # with the new settings, so that no load ends the new locks
        second = WireShareMember(stack.enter_context(WireConnection(other.port)), find(cluster, "t"))
        assert second.acquire() == [(0, COUNT - 1, 2)]
        stopped.signal(signal.SIGCONT)
        [topic] = first.connection.receive(late, 2).responses
        assert [part.error_code for part in topic.partitions] == [INVALID_RECORD_STATE]
        assert second.acknowledge((0, COUNT - 1, [1])) == 0
