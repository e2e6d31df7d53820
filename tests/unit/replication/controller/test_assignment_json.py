"""Kafka's JSON of assignments, and every way to get it wrong."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import InvalidReplicationAssignmentError
from spark_log.ids import TopicPartition
from spark_log.replication.controller.assignment_json import dump_assignments, parse_assignments

GOOD = {"topic": "t", "partition": 0, "replicas": [1, 2]}


@given(
    st.dictionaries(
        st.tuples(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.integers(0, 9)).map(lambda tp: TopicPartition(*tp)),
        st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True).map(tuple),
    )
)
def test_a_dumped_document_is_parsed_back(assignments):
    assert parse_assignments(json.dumps(dump_assignments(assignments))) == assignments


def test_a_document_of_kafkas_tool_is_parsed():
    text = (
        '{"version":1,"partitions":[{"topic":"foo","partition":2,"replicas":[1,2],"log_dirs":["any","any"]},'
        '{"topic":"foo","partition":0,"replicas":[3]}]}'
    )
    assert parse_assignments(text) == {TopicPartition("foo", 2): (1, 2), TopicPartition("foo", 0): (3,)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topic": 7}, "got `int` - at `$.partitions[0].topic`"),
        ({"topic": "a/b"}, "partitions[0].topic"),
        ({"partition": -1}, ">= 0 - at `$.partitions[0].partition`"),
        ({"partition": 1.5}, "got `float` - at `$.partitions[0].partition`"),
        ({"partition": True}, "got `bool` - at `$.partitions[0].partition`"),
        ({"partition": "0"}, "got `str` - at `$.partitions[0].partition`"),
        ({"partition": 2**31}, "<= 2147483647 - at `$.partitions[0].partition`"),
        ({"replicas": 1}, "got `int` - at `$.partitions[0].replicas`"),
        ({"replicas": []}, "length >= 1 - at `$.partitions[0].replicas`"),
        ({"replicas": [1, 1]}, "partitions[0].replicas: expected distinct broker ids, got [1, 1]"),
        ({"replicas": [1, 0]}, ">= 1 - at `$.partitions[0].replicas[1]`"),
        ({"replicas": [1, None]}, "got `null` - at `$.partitions[0].replicas[1]`"),
        ({"log_dirs": ["any"]}, "partitions[0].log_dirs: expected one for each of the 2 replicas, got 1"),
        ({"log_dirs": ["any", "/data"]}, "'/data' - at `$.partitions[0].log_dirs[1]`"),
        ({"leader": 1}, "unknown field `leader` - at `$.partitions[0]`"),
    ],
)
def test_a_wrong_entry_is_named(change, message):
    with pytest.raises(InvalidReplicationAssignmentError, match=re.escape(message)):
        parse_assignments(json.dumps({"version": 1, "partitions": [{**GOOD, **change}]}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "got `array`"),
        ('{"version": 1}', "missing required field `partitions`"),
        ('{"partitions": []}', "missing required field `version`"),
        ('{"version": 2, "partitions": []}', "2 - at `$.version`"),
        ('{"version": true, "partitions": []}', "got `bool` - at `$.version`"),
        ('{"version": 1, "partitions": {}}', "got `object` - at `$.partitions`"),
        ('{"version": 1, "partitions": [3]}', "got `int` - at `$.partitions[0]`"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0}]}', "missing required field `replicas`"),
        (json.dumps({"version": 1, "partitions": [GOOD, GOOD]}), "partitions[1]: t-0 comes twice"),
    ],
)
def test_a_wrong_document_is_refused_with_its_reason(text, message):
    with pytest.raises(InvalidReplicationAssignmentError, match=re.escape(message)):
        parse_assignments(text)
