"""A gateway that is paused between reading a request of a transaction and executing it, and goes on in the producer's
next transaction.
"""

import contextlib
import signal

import pytest

from spark_log.facts.transactions import list_transactions
from spark_log.groups.committed_offsets import committed_offsets
from tests.support.gateway_wire import LOADING, TRANSACTION_VERSIONS, WireConnection, WireProducer, call, code_of
from tests.support.records import topic_values
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make

pytestmark = [pytest.mark.on_sqlite, pytest.mark.on_data_store]

POINT = "gateway.transaction-request-read"


@pytest.mark.parametrize(
    "late", ["commit", "abort", "partitions", "offsets of a group", "group offset", "only group offset"]
)
def test_late_request_changes_nothing_in_the_next_transaction(cluster, cluster_address, tmp_path, late):
    """Each request executed under a fencing token passes the failpoint: three before the late one."""
    make(cluster, "t", 1)
    make(cluster, "input", 1)
    paused, other = (GatewayProcess(tmp_path, cluster_address) for _ in range(2))
    with other, contextlib.ExitStack() as stack:
        stack.callback(paused.kill)
        paused.start(failpoint=f"{POINT}:4:stop")
        with WireConnection(paused.port) as first, WireConnection(other.port) as second:
            producer = WireProducer(first)
            assert call(first, producer.add_partitions("t")) == 0
            assert call(first, producer.add_offsets("g")) == 0
            assert producer.send(first, "t", b"1").error_code == 0
            assert call(first, producer.commit_offset("input", 1, "g")) == 0
            request = {
                "commit": producer.end(commit=True),
                "abort": producer.end(commit=False),
                "partitions": producer.add_partitions("t"),
                "offsets of a group": producer.add_offsets("g"),
                "group offset": producer.commit_offset("input", 99, "g"),
                "only group offset": producer.commit_offset("input", 99, "g"),
            }[late]
            version = TRANSACTION_VERSIONS[type(request).__name__.removesuffix("Request")]
            first.send(request, version)
            paused.wait_until_stopped()
            # the client goes on with the other gateway: the group offset was given up, so it aborts
            aborts = late == "abort" or late.endswith("group offset")
            assert call(second, producer.end(commit=not aborts)) == 0
            expected, offset = ([], None) if aborts else ([b"1"], 1)
            if late not in ("partitions", "offsets of a group"):
                assert call(second, producer.add_partitions("t")) == 0
                assert producer.send(second, "t", b"2").error_code == 0
                assert call(second, producer.add_offsets("g")) == 0
                if late == "group offset":
                    assert call(second, producer.commit_offset("input", 2, "g")) == 0
                    expected, offset = [b"2"], 2
                elif late == "only group offset":  # no other connection has taken the fencing token
                    expected = [b"2"]
            paused.signal(signal.SIGCONT)
            assert code_of(first.receive(request, version)) == LOADING
            [found] = list_transactions(cluster)
            state = "CompleteCommit" if late in ("partitions", "offsets of a group") else "Ongoing"
            assert found.state.value == state, "the late request has neither ended nor begun a transaction"
            if late.endswith("group offset"):
                assert call(second, producer.end(commit=True)) == 0
            elif state == "Ongoing":
                assert call(second, producer.end(commit=False)) == 0, "the late request has taken the token only"
            assert topic_values(cluster, "t") == expected
            assert committed_offsets(cluster.store, "g").get(("input", 0)) == offset
