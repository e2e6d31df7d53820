"""A Spark write is recorded for the topics that it wrote to, not for later topics of the same name."""

import pytest

from spark_log.errors import CheckpointMismatchError
from spark_log.replication.controller.topic_operations import delete_topic
from tests.support.data_source import write_batch, write_micro_batch
from tests.support.topics import make, stored

pytestmark = pytest.mark.on_sqlite


def recreate(cluster, name):
    delete_topic(cluster, name)
    make(cluster, name, inline_max_bytes="1000", compression_type="none")


def contents(cluster):
    return {name: stored(cluster, name).get(0, []) for name in ("a", "b")}


LARGE = "x" * 5_000


@pytest.fixture(autouse=True)
def topics(cluster):
    """Topics a and b; batches above 1000 bytes become files."""
    for name in ("a", "b"):
        make(cluster, name, inline_max_bytes="1000", compression_type="none")


def test_a_version_is_written_again_into_a_recreated_topic(cluster):
    def write(version, value):
        write_batch(cluster, [("", value)], topic="a", txnAppId="app", txnVersion=version)

    write(5, "old")
    recreate(cluster, "a")
    write(5, "new")
    write(5, "again")
    write(4, "older")
    assert contents(cluster) == {"a": ["new"], "b": []}
    recreate(cluster, "a")
    write(2, "an older version in a new topic")
    write(2, "again")
    write(3, "the next one")
    assert contents(cluster)["a"] == ["an older version in a new topic", "the next one"]


def test_a_micro_batch_is_written_again_into_a_recreated_topic(cluster):
    for number in range(3):
        write_micro_batch(cluster, number, [("", f"{number}")], topic="a")
    recreate(cluster, "a")
    for _ in range(2):
        write_micro_batch(cluster, 2, [("", "2")], topic="a")
    assert contents(cluster)["a"] == ["2"]
    recreate(cluster, "a")
    for number in range(2):  # from an older checkpoint: this topic has none of its batches
        write_micro_batch(cluster, number, [("", f"{number} anew")], topic="a")
    assert contents(cluster)["a"] == ["0 anew", "1 anew"]
    with pytest.raises(CheckpointMismatchError):
        write_micro_batch(cluster, 0, [("", "0 anew")], topic="a")


def test_an_empty_micro_batch_begins_a_recreated_topic(cluster):
    for number in range(3):
        write_micro_batch(cluster, number, [("", f"{number}")], topic="a")
    recreate(cluster, "a")
    write_micro_batch(cluster, 0, [], topic="a")
    write_micro_batch(cluster, 1, [("", "1 anew")], topic="a")
    assert contents(cluster)["a"] == ["1 anew"]


@pytest.mark.parametrize("value", ["small", LARGE])
def test_rows_with_topic_names_are_written_again_into_the_recreated_topic_only(cluster, log, tmp_path, value):
    rows = [("a", f"{value} of a"), ("b", f"{value} of b")]
    later = [("b", f"{value} later")]

    def write(version, rows):
        write_batch(cluster, rows, txnAppId="app", txnVersion=version)

    write(1, rows)
    write_micro_batch(cluster, 1, rows)
    recreate(cluster, "a")
    for _ in range(2):
        write(1, rows)
        write_micro_batch(cluster, 1, rows)
    once = {"a": [f"{value} of a"] * 2, "b": [f"{value} of b"] * 2}
    assert contents(cluster) == once
    write(2, later)
    recreate(cluster, "a")
    write(1, rows)  # late: a lacks the version; b has it and later ones
    write(2, later)
    assert contents(cluster) == {"a": [f"{value} of a"], "b": [*once["b"], *(text for _, text in later)]}
    with pytest.raises(CheckpointMismatchError):
        write_micro_batch(cluster, 0, rows)
    if value == LARGE:
        for name, values in contents(cluster).items():
            files = list(tmp_path.rglob(f"{log.find_topic(name).folder}/_segments/*/*.parquet"))
            assert len(files) == len(values), "what is in the log already is not left behind"
