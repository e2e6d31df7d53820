"""Searches of real topics: each matching record once, forwards and backwards, whatever the budget."""

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from spark_log.console.search.filter import compile_filter
from spark_log.console.search.position import Position
from spark_log.console.search.search import STEP_RECORDS, Budget, Conditions, RunningSearches, Search
from spark_log.errors import InvalidOptionError
from tests.support.records import ranges_of
from tests.support.schemas import document, typed
from tests.support.topics import append, compact_now, make

pytestmark = pytest.mark.on_sqlite

PARTITIONS = 3


@pytest.fixture
def found(cluster, log):
    """A topic with files, blobs and gaps, and its records: (partition, offset, key, n)."""
    topic = make(cluster, "t", PARTITIONS, cleanup_policy="compact", inline_max_bytes="2000", retention_ms="-1")
    chance = random.Random(7)
    n = 0
    for round_ in range(8):
        for partition in range(PARTITIONS - (round_ % 2)):
            key = f"k{chance.randrange(4)}"
            count = chance.choice([1, 3, 40, 200])
            append(log, topic, *(json.dumps({"n": n + i}) for i in range(count)), partition=partition, key=key.encode())
            n += count
    compact_now(cluster, "t")
    for partition in range(PARTITIONS):
        append(log, topic, *(json.dumps({"n": n + i}) for i in range(50)), partition=partition, key=b"k1")
        n += 50
    rows = [
        (row["partition"], row["offset"], row["key"].decode(), json.loads(row["value"])["n"])
        for batch in log.read(ranges_of(log, topic))
        for row in batch.to_pylist()
    ]
    assert len(rows) < rows[-1][1] * PARTITIONS, "compaction has left gaps"
    return topic, rows


def begin(log, topic, backwards):
    limits = {tp.partition: at for tp, at in log.positions(topic).items()}
    first = {p: at.high_watermark if backwards else at.log_start_offset for p, at in limits.items()}
    return Position.begin(topic.topic_id, backwards, first, limits)


def searched(log, topic, position, conditions, count, bytes_max):
    """(partition, offset) of all records that searches find one after the other, each continuing the one before."""
    places = []
    for _ in range(1_000):
        search = Search(log, topic, position, conditions, count, Budget(bytes_max, 60))
        page = [
            place
            for batch in search.batches()
            for place in zip(*(batch.column(name).to_pylist() for name in ("partition", "offset")), strict=True)
        ]
        assert len(page) == search.matched <= count
        places += page
        limits = {tp.partition: at for tp, at in log.positions(topic).items()}
        position = Position.of_token(search.position.token, topic.topic_id, limits)
        if search.complete:
            return places
    raise AssertionError("the searches came to no end")


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("count", "bytes_max"), [(30, 1 << 30), (10_000, 1_000)])
def test_each_matching_record_is_found_once(log, found, backwards, count, bytes_max):
    topic, rows = found
    low = rows[len(rows) // 2][3]
    high = low + 60
    for text, matches in [
        (None, lambda row: True),
        ("key = 'k1'", lambda row: row[2] == "k1"),
        (f"value.n BETWEEN {low} AND {high} AND partition != 1", lambda row: low <= row[3] <= high and row[0] != 1),
        ("offset < 0", lambda row: False),
    ]:
        conditions = Conditions(filter=None if text is None else compile_filter(text))
        places = searched(log, topic, begin(log, topic, backwards), conditions, count, bytes_max)
        assert sorted(places) == [row[:2] for row in rows if matches(row)], text


@pytest.mark.parametrize("backwards", [False, True])
def test_partitions_take_turns_if_there_are_more_than_messages_on_a_page(cluster, log, backwards):
    topic = make(cluster, "t", 5)
    for partition in range(5):
        append(log, topic, "a", "b", partition=partition)
    position, pages = begin(log, topic, backwards), []
    for _ in range(5):
        search = Search(log, topic, position, Conditions(), 2, Budget(1 << 30, 60))
        pages.append([row for batch in search.batches() for row in batch.column("partition").to_pylist()])
        position = Position.of_token(search.position.token, topic.topic_id, position.limits)
    assert pages == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]


def test_keys_and_headers_are_compared_as_bytes(log, cluster):
    topic = make(cluster, "t", 1)
    for key, headers in [(b"\xff", [("h", b"1")]), (b"\xfe", [("h", b"\xff"), ("g", b"")]), (None, None)]:
        append(log, topic, "v", key=key, headers=headers)
    for conditions, offsets in [
        (Conditions(key=b"\xff"), [0]),
        (Conditions(header=("h", None)), [0, 1]),
        (Conditions(header=("h", b"\xff")), [1]),
        (Conditions(key=b"\xff", header=("h", b"\xff")), []),
    ]:
        places = searched(log, topic, begin(log, topic, False), conditions, 10, 1 << 30)
        assert [offset for _, offset in places] == offsets


def test_a_filter_on_columns_reads_no_values_and_skips_files(cluster, log):
    topic = typed(cluster, inline_max_bytes="0")
    for first in (0, 1000):
        append(log, topic, *(document(n, note="x" * 500) for n in range(first, first + 1000)))
    whole = Search(log, topic, begin(log, topic, False), Conditions(), 5000, Budget(1 << 30, 60))
    assert sum(batch.num_rows for batch in whole.batches()) == 2000
    narrow = Conditions(filter=compile_filter("record.n >= 1990", topic.columns.fields))
    search = Search(log, topic, begin(log, topic, False), narrow, 5000, Budget(1 << 30, 60))
    [batch] = search.batches()
    assert [row["n"] for row in batch.column("record").to_pylist()] == list(range(1990, 2000))
    assert batch.column("value")[0].as_py() == document(1990, note="x" * 500).encode()
    assert search.records == 1000, "the other file is ruled out by its statistics"
    assert search.budget.used_bytes < whole.budget.used_bytes / 20


def test_a_budget_that_is_too_small_for_one_record_still_makes_progress(log, cluster):
    topic = make(cluster, "t", 2)
    for partition in range(2):
        append(log, topic, *"abc", partition=partition)
    for backwards in (False, True):
        places = searched(log, topic, begin(log, topic, backwards), Conditions(), 10, 1)
        assert sorted(places) == [(partition, offset) for partition in range(2) for offset in range(3)]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("conditions", [Conditions(), Conditions(filter=compile_filter("offset >= 0"))])
def test_a_budget_is_looked_at_within_a_batch(log, cluster, backwards, conditions):
    topic = make(cluster, "t", 1)
    count = 3 * STEP_RECORDS
    append(log, topic, *map(str, range(count)))
    position = begin(log, topic, backwards)
    asked = []
    budget = Budget(1 << 30, 60, lambda: bool(asked.append(1)) or len(asked) > 3)
    search = Search(log, topic, position, conditions, count, budget)
    found = [place for batch in search.batches() for place in batch.column("offset").to_pylist()]
    assert len(found) < count and search.records <= count and not search.complete
    rest = searched(log, topic, position, conditions, count, 1 << 30)
    assert sorted([*found, *(offset for _, offset in rest)]) == list(range(count)), "it is continued exactly there"


def test_a_search_stops_at_once_when_it_is_told_to(log, found):
    topic, _ = found
    asked = []
    budget = Budget(1 << 30, 60, lambda: bool(asked.append(1)) or len(asked) > 3)
    search = Search(log, topic, begin(log, topic, False), Conditions(filter=compile_filter("key = 'none'")), 10, budget)
    assert not list(search.batches())
    assert not search.complete and len(asked) <= 6


def test_there_are_only_so_many_searches():
    running = RunningSearches()
    with running.of("ann", 2), running.of("bob", 2):
        with pytest.raises(HTTPException, match="2 searches"), running.of("carl", 2):
            pass
        with running.of("ann", 2), running.of("a download"):
            assert running.count == 3


def test_the_next_search_of_a_user_stops_the_one_before():
    running = RunningSearches()
    with running.of("ann") as first, running.of("bob") as other:
        assert not first()
        with running.of("ann") as second:
            assert first() and not second() and not other()
        with running.of("ann") as third:
            assert not third()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60) | st.binary(max_size=40).map(lambda data: data.hex()))
def test_a_damaged_token_is_refused(text):
    with pytest.raises(InvalidOptionError, match="token"):
        Position.of_token(text, 1, {})


def test_a_token_of_a_deleted_topic_is_refused(cluster, log):
    topic = make(cluster, "t", 1)
    token = begin(log, topic, False).token
    with pytest.raises(InvalidOptionError, match="deleted and created again"):
        Position.of_token(token, topic.topic_id + 1, {})
