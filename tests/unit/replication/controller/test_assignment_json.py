"""Kafka's JSON of assignments, and every way to get it wrong."""

import json

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
        ({"topic": 7}, r"partitions\[0\]\.topic must be text, got 7"),
        ({"topic": "a/b"}, r"partitions\[0\]\.topic.*'a/b'"),
        ({"partition": -1}, r"partitions\[0\]\.partition: .* got -1"),
        ({"partition": 1.0}, r"partition: .* got 1\.0"),
        ({"partition": True}, r"partition: .* got True"),
        ({"partition": "0"}, r"partition: .* got '0'"),
        ({"partition": 2**31}, r"partition: .* got 2147483648"),
        ({"replicas": 1}, r"replicas: expected a list, got 1"),
        ({"replicas": []}, r"replicas: .* got \[\]"),
        ({"replicas": [1, 1]}, r"replicas: .* got \[1, 1\]"),
        ({"replicas": [1, 0]}, r"replicas\[1\]: .* got 0"),
        ({"replicas": [1, None]}, r"replicas\[1\]: .* got None"),
        ({"log_dirs": ["any"]}, r"log_dirs: expected one for each of the 2 replicas, got \['any'\]"),
        ({"log_dirs": ["any", "/data"]}, r"log_dirs\[1\]: expected 'any', got '/data'"),
        ({"leader": 1}, r"partitions\[0\]: 'leader' is unknown: 1"),
    ],
)
def test_a_wrong_entry_is_named(change, message):
    with pytest.raises(InvalidReplicationAssignmentError, match=message):
        parse_assignments(json.dumps({"version": 1, "partitions": [{**GOOD, **change}]}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", r"assignment: expected an object, got \[\]"),
        ('{"version": 1}', "'partitions' is missing"),
        ('{"partitions": []}', "'version' is missing"),
        ('{"version": 2, "partitions": []}', "version: expected 1, got 2"),
        ('{"version": true, "partitions": []}', "version: expected 1, got True"),
        ('{"version": 1, "partitions": {}}', "partitions: expected a list, got {}"),
        ('{"version": 1, "partitions": [3]}', r"partitions\[0\]: expected an object, got 3"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0}]}', r"partitions\[0\]: 'replicas' is missing"),
        ('{"version": 1, "version": 1, "partitions": []}', "'version' comes twice in one object"),
        (json.dumps({"version": 1, "partitions": [GOOD, GOOD]}), r"partitions\[1\]: t-0 comes twice"),
    ],
)
def test_a_wrong_document_is_refused_with_its_reason(text, message):
    with pytest.raises(InvalidReplicationAssignmentError, match=message):
        parse_assignments(text)
