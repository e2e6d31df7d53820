"""The programs of kafka-python's own README, as its installed package carries it, on a spark-log cluster.

The test changes the import and the address, and ends endless loops. The example of transactions is a separate program:
the blocks after it in the README send outside of a transaction, which its producer refuses.
"""

import re
import textwrap
from importlib.metadata import metadata

import pytest

from spark_log.replication.controller.topic_operations import create_topic
from tests.support.python_process import output_of
from tests.support.topics import append, stored


def programs(client, *, transactions=False):
    """The README's blocks that use `client` (producer or consumer), in order, as one program: the transactional blocks
    or all others.
    """
    package = metadata("kafka-python")
    text = package.get_payload() or package["Description"]
    blocks = [textwrap.dedent(block) for block in re.findall(r"code-block:: python\n\n((?: {4}.*\n|\n)+)", text)]
    chosen = [block for block in blocks if f"{client}." in block or f"in {client}" in block]
    assert len(chosen) >= 5, "the README has changed"
    return "\n".join(block for block in chosen if ("transactional_id" in block) == transactions)


def run(program, address, *, ours):
    """`ours`: the import of our class under the name of kafka-python's."""
    program = re.sub(r"from kafka import (Kafka\w+)(?:, (\w+))?", rf"{ours}\nfrom kafka import \2", program)
    program = program.replace("from kafka import \n", "\n").replace("'localhost:1234'", repr(address))
    return output_of(program)


@pytest.fixture(autouse=True)
def default_cluster(cluster_address, monkeypatch):
    """The cluster of the clients that name none."""
    monkeypatch.setenv("SPARK_LOG_CLUSTER", cluster_address)


@pytest.mark.on_sqlite
def test_producers(cluster, cluster_address):
    run(programs("producer"), cluster_address, ours="from spark_log import Producer as KafkaProducer")
    sent = stored(cluster, "foobar")[0]
    assert sent[:102] == ["some_message_bytes"] * 100 + ["another_message", "bar"]
    assert sorted(sent[102:]) == sorted([*(f"msg {n}" for n in range(1000)), "c29tZSB2YWx1ZQ=="])
    assert stored(cluster, "fizzbuzz") == {0: ['{"foo": "bar"}']}
    assert stored(cluster, "flipflap") == {0: ["1234"]}


@pytest.mark.on_sqlite
def test_transactions(cluster, cluster_address):
    program = "from kafka import KafkaProducer\n" + programs("producer", transactions=True)
    run(program, cluster_address, ours="from spark_log import Producer as KafkaProducer")
    assert stored(cluster, "txn_topic") == {0: ["yes"]}


ENDING = """
import functools
from spark_log import Consumer
KafkaConsumer = functools.partial(Consumer, auto_offset_reset="earliest", consumer_timeout_ms=1500)
"""


@pytest.mark.slow
@pytest.mark.on_sqlite
def test_consumers(cluster, cluster_address, log):
    for name, partitions in (("my_favorite_topic", 2), ("foobar", 3), ("json-foo", 1), ("txn_topic", 1)):
        create_topic(cluster, name, partitions)
    append(log, "my_favorite_topic", "a", "b", partition=1)
    append(log, "foobar", "c", partition=2)
    append(log, "json-foo", '{"d": 1}', headers=[("e", b"f")])
    append(log, "txn_topic", "g")
    printed = run(programs("consumer"), cluster_address, ours=ENDING)
    values = re.findall(r"ConsumerRecord\(.*value=b'(\w)'", printed)
    assert values == ["a", "b", "a", "b", "g"]
