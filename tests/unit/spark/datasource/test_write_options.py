"""The documented options of writes, with their messages."""

import re

import pytest

from spark_log.errors import InvalidGroupIdError, InvalidOptionError, InvalidTopicError, PolicyViolationError
from spark_log.spark.datasource.options.source_options import (
    PendingWrite,
    TxnVersion,
    WriteOptions,
)
from spark_log.transactions.rules import ProducerRef

BASE = {"cluster": "/c", "subscribe": "t"}


def write(**options: str) -> WriteOptions:
    return WriteOptions.parse({"cluster": "/c", **options}, streaming=False, environ={})


def test_acks_and_compression() -> None:
    for acks in ("all", "-1", "1", "0"):
        assert write(**{"kafka.acks": acks}) == write(), "at least what was asked for"
    assert write(**{"kafka.enable.idempotence": "false"}) == write()
    with pytest.raises(InvalidOptionError, match=r"'kafka.acks' must be all or -1 or 0 or 1, got '2'"):
        write(**{"kafka.acks": "2"})
    assert write(**{"kafka.compression.type": " GZIP "}).compression_type == "gzip"
    assert write(**{"kafka.compression.type": "none"}).compression_type is None, "Kafka's default"
    with pytest.raises(InvalidOptionError, match=r"'kafka.compression.type' must be .*, got 'brotli'"):
        write(**{"kafka.compression.type": "brotli"})


def test_writes() -> None:
    assert write() == WriteOptions("/c", None, None)
    assert write(TOPIC=" t ").topic == "t"
    assert write(txnAppId="app", txnVersion="0").txn == TxnVersion("app", 0)
    assert WriteOptions.parse({}, streaming=True, environ={"SPARK_LOG_CLUSTER": "/env"}).cluster == "/env"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"txnAppId": "a"}, "Option 'txnVersion' must be specified too where 'txnAppId' is ('a')"),
        ({"txnVersion": "1"}, "Option 'txnAppId' must be specified too where 'txnVersion' is ('1')"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "Option 'txnVersion' must not be negative, got -1"),
        ({"txnAppId": "a", "txnVersion": "x"}, "Option 'txnVersion' must be a whole number"),
        ({"txnAppId": "a", "txnVersion": str(2**63)}, "Option 'txnVersion' must be a whole number"),
        ({"txnAppId": "", "txnVersion": "1"}, "Option 'txnAppId' must be a text that is not empty"),
        ({"kafka.key.serializer": "x"}, "Kafka option 'key.serializer' is not supported"),
        ({"kafka.value.serializer": "x"}, "Kafka option 'value.serializer' is not supported"),
        ({"group.id": "g"}, "Option 'group.id' ('g') of a write is for streaming queries"),
        (
            {"transaction": "1:2"},
            "Option 'transaction' ('1:2') is set by spark_log.spark.streams.batch_transaction",
        ),
        ({"transaction": "1:2:x"}, "Option 'transaction' ('1:2:x') is set by"),
        (
            {"transaction": "1:2:3", "txnAppId": "a", "txnVersion": "1"},
            "Options 'txnAppId' ('a') and 'transaction' exclude each other",
        ),
    ],
)
def test_invalid_write_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=re.escape(message)):
        write(**options)


def test_streams_refuse_transaction_versions() -> None:
    with pytest.raises(InvalidOptionError, match="are for batch writes"):
        WriteOptions.parse({**BASE, "txnAppId": "a", "txnVersion": "1"}, streaming=True, environ={})


def test_pending_writes() -> None:
    pending = PendingWrite(ProducerRef(7, 12), 3)
    assert write(transaction=str(pending)).pending == pending
    with pytest.raises(InvalidOptionError, match=r"'1:2:3'.*for its batch writes"):
        WriteOptions.parse({**BASE, "transaction": "1:2:3"}, streaming=True, environ={})


def test_groups_of_sinks() -> None:
    def sink(**options: str) -> tuple[str | None, str | None]:
        given = {**BASE, **{name.replace("__", "."): value for name, value in options.items()}}
        parsed = WriteOptions.parse(given, streaming=True, environ={})
        return parsed.group, parsed.checkpoint

    assert sink() == (None, None)
    assert sink(checkpointLocation="/c") == (None, "/c")
    assert sink(group__id="g", checkpointLocation="/c") == ("g", "/c")
    assert sink(kafka__group__id=" g ", checkpointlocation="s3://b/c") == ("g", "s3://b/c")
    with pytest.raises(InvalidOptionError, match=r"'checkpointLocation' must be specified.*\('g'\)"):
        sink(group__id="g")
    with pytest.raises(InvalidGroupIdError, match="250 characters"):
        sink(group__id="g" * 250, checkpointLocation="/c")


def test_topic_of_a_write_is_checked() -> None:
    with pytest.raises(InvalidTopicError, match=r"option 'topic' is not a legal topic name: 'a/b'"):
        write(topic="a/b")
    with pytest.raises(InvalidTopicError, match=r"option 'topic'.*'' is empty"):
        write(topic=" ")
    with pytest.raises(PolicyViolationError, match="__consumer_offsets"):
        write(topic="__consumer_offsets")
