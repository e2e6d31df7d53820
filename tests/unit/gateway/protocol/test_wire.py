"""Requests that are longer or shorter than their fields."""

import pytest
from kafka.protocol.metadata import MetadataRequest

from spark_log.gateway.protocol.wire import MalformedRequestError, read_body

ALL_TOPICS = b"\0\1\0\0"


def read(body):
    return read_body(MetadataRequest, 12, memoryview(body))


def test_bytes_after_the_fields_are_ignored():
    """librdkafka 2.12 sends three more bytes when it asks for all topics."""
    for body in (ALL_TOPICS, ALL_TOPICS + b"\0\0\0"):
        found = read(body)
        assert (found.topics, found.allow_auto_topic_creation) == (None, True)


def test_a_request_that_is_cut_off_is_refused():
    one_topic = b"\2" + bytes(16) + b"\5abcd\0\1\0\0"
    assert [topic.name for topic in read(one_topic).topics] == ["abcd"]
    for end in range(len(one_topic)):
        with pytest.raises(MalformedRequestError):
            read(one_topic[:end])
