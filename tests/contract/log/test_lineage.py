"""Logs that an unclean election truncates: a consumer sees a prefix of one lineage, or reports a truncation."""

import random

import pytest
from kafka.errors import LogTruncationError
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import errors
from spark_log.groups.committed_offsets import committed
from tests.support.lineage import LineageReader, Tag, TaggedLog

pytestmark = [pytest.mark.on_sqlite, pytest.mark.on_data_store]

P0 = TopicPartition("t", 0)


@pytest.fixture
def tagged(cluster, tmp_path):
    log = TaggedLog(cluster, tmp_path)
    yield log
    log.log.close()


@pytest.fixture
def consume(consume):
    def make_consumer(**settings):
        consumer = consume(**settings)
        consumer.assign([P0])
        return consumer

    return make_consumer


def tags(consumer, **arguments):
    return [Tag.of(record.value) for records in consumer.poll(**arguments).values() for record in records]


def truncated(tagged):
    """5 records, of which `cut` takes the last 3."""
    tagged.append(2)
    tagged.fork()
    tagged.append(3)
    return tagged


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_a_consumer_with_a_reset_policy_returns_to_the_offset_of_divergence(tagged, consume, policy):
    truncated(tagged)
    consumer = consume(auto_offset_reset=policy)
    consumer.seek(P0, 0)
    assert [tag.offset for tag in tags(consumer, timeout_ms=1000)] == [0, 1, 2, 3, 4]
    tagged.cut()
    tagged.append(4)
    assert tags(consumer, timeout_ms=1000) == tagged.records[2:]


def test_a_consumer_without_a_reset_policy_gets_an_error_that_names_the_offset_of_divergence(tagged, consume):
    truncated(tagged)
    consumer = consume(auto_offset_reset="none")
    consumer.seek(P0, 0)
    assert len(tags(consumer, timeout_ms=1000)) == 5
    tagged.cut()
    tagged.append(4)
    for _ in range(2):  # it repeats until the user seeks
        with pytest.raises(LogTruncationError) as raised:
            consumer.poll(60_000)
        assert isinstance(raised.value, errors.LogTruncationError)
        assert raised.value.divergent_offsets == {P0: OffsetAndMetadata(2, "", 0)}
        assert raised.value.partition_offsets == {P0: 5}
    consumer.seek(P0, raised.value.divergent_offsets[P0])
    assert tags(consumer, timeout_ms=1000) == tagged.records[2:]


def test_a_committed_offset_belongs_to_a_lineage(tagged, consume, cluster):
    truncated(tagged)
    first = consume()
    tags(first, timeout_ms=1000)
    first.commit()
    assert first.committed(P0, metadata=True) == OffsetAndMetadata(5, "", 0)
    first.close()
    tagged.cut()
    tagged.append(4)
    second = consume()
    assert tags(second, timeout_ms=1000) == tagged.records[2:]
    second.commit()
    assert committed(cluster.store, "g") == {P0: OffsetAndMetadata(6, "", tagged.records[-1].leader_epoch)}
    strict = consume(auto_offset_reset="none", group_id=None)
    strict.seek(P0, OffsetAndMetadata(5, "", 0))
    with pytest.raises(LogTruncationError):
        strict.poll(0)


def test_records_and_commits_have_a_leader_epoch(tagged, consume):
    tagged.append(2)
    tagged.fork()
    tagged.cut()
    tagged.append(2)
    assert tagged.records[-1].leader_epoch > 0
    consumer = consume()
    polled = consumer.poll(60_000)[P0]
    assert [record.leader_epoch for record in polled] == [tag.leader_epoch for tag in tagged.records]
    consumer.seek(P0, 1)
    consumer.poll_arrow(60_000, max_records=1)
    consumer.commit()
    assert consumer.committed(P0, metadata=True).leader_epoch == tagged.records[1].leader_epoch
    consumer.seek_to_end(P0)
    assert consumer.position(P0) == 4
    consumer.commit()
    assert consumer.committed(P0, metadata=True).leader_epoch == tagged.records[-1].leader_epoch


def test_records_that_were_fetched_before_a_truncation_are_not_returned_after_it(tagged, consume):
    tagged.append(2)
    consumer = consume(max_poll_records=1)
    tagged.fork()
    tagged.append(3)
    reader = LineageReader(tagged)
    reader.saw(tags(consumer, timeout_ms=1000))
    tagged.cut()
    tagged.append(4)
    consumer.position(P0)
    for _ in tagged.records[1:]:
        reader.saw(tags(consumer, timeout_ms=1000))
    reader.is_up_to_date()


@pytest.mark.parametrize("seed", range(4))
def test_a_consumer_sees_a_prefix_of_one_lineage_or_reports_a_truncation(tagged, consume, seed):
    """Appends, elections that cut, restarts, commits, small and large polls, in random order."""
    chance = random.Random(seed)
    policy = "none" if seed % 2 else "earliest"
    consumer, reader, seen_at_commit = consume(auto_offset_reset=policy), LineageReader(tagged), []
    consumer.seek(P0, 0)

    def read(rounds):
        for _ in range(rounds):
            try:
                found = tags(consumer, timeout_ms=0, max_records=chance.choice([1, 3, 500]))
            except LogTruncationError as error:
                at = error.divergent_offsets[P0]
                reader.reported(at.offset)
                consumer.seek(P0, at)
                continue
            begin = found[0].offset if found else consumer.position(P0)
            if begin < len(reader.seen):
                reader.reported(begin)
            reader.saw(found)

    for _ in range(40):
        step = chance.choice(["append", "append", "election", "read", "read", "commit", "restart"])
        if step == "append":
            tagged.append(chance.randint(1, 4))
        elif step == "election":
            if tagged.away is None:
                tagged.fork()
            else:
                chance.choice([tagged.cut, tagged.cut, tagged.join])()
        elif step == "read":
            read(chance.randint(1, 3))
        elif step == "commit":
            consumer.commit()
            seen_at_commit = list(reader.seen)
        else:
            consumer.close(autocommit=False)
            consumer = consume(auto_offset_reset=policy)
            reader.seen = list(seen_at_commit)
            if not reader.seen:
                consumer.seek(P0, 0)
    read(100)
    assert consumer.position(P0) == len(tagged.records)
    reader.is_up_to_date()
