import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_log.log.records.fingerprint import EMPTY, combine, fingerprint
from spark_log.log.records.schema import stamp
from tests.unit.log.records.strategies import example_table, record_tables, table_of

PINNED = 17994097588861114222


def of(*rows: tuple[object, object, object]) -> int:
    return fingerprint(table_of([(*row, 1000) for row in rows]), "t")


@given(record_tables(), st.randoms(use_true_random=False), st.integers(0, 30))
@settings(max_examples=80, deadline=None)
def test_order_and_batches_do_not_matter(table: pa.Table, random: object, cut: int) -> None:
    order = list(range(table.num_rows))
    random.shuffle(order)  # type: ignore[attr-defined]
    whole = fingerprint(table, "t")
    assert 0 <= whole < 1 << 64
    assert fingerprint(table.take(pa.array(order, pa.int64())), "t") == whole
    assert combine(fingerprint(table.slice(0, cut), "t"), fingerprint(table.slice(cut), "t")) == whole
    assert fingerprint(table, pa.array(["t"] * table.num_rows, pa.string())) == whole
    assert fingerprint(stamp(table, 5), "t") == whole
    assert fingerprint(table, "t", pa.array([None] * table.num_rows, pa.int32())) == whole


def test_values_are_pinned_because_they_are_stored() -> None:
    assert fingerprint(table_of([]), "t") == EMPTY
    assert fingerprint(example_table(), "orders") == PINNED
    assert fingerprint(example_table().to_batches()[0], "orders") == PINNED


@given(st.binary(max_size=40), st.data())
@settings(max_examples=150, deadline=None)
def test_any_changed_byte_counts(value: bytes, data: st.DataObject) -> None:
    base = of((b"k", value, None))
    changed = [value + b"\0", b"\0" + value, value[:-1] + b"!!"]
    if value:
        at = data.draw(st.integers(0, len(value) - 1))
        bit = data.draw(st.integers(0, 7))
        changed.append(value[:at] + bytes([value[at] ^ (1 << bit)]) + value[at + 1 :])
    for other in changed:
        assert of((b"k", other, None)) != base
        assert of((other, b"k", None)) != base
    assert of((b"k", None, None)) != base
    assert of((b"k", value, None), (b"k", value, None)) != base


def test_no_two_different_batches_agree() -> None:
    header = {"key": "a", "value": b"x"}
    other = {"key": "b", "value": b"y"}
    batches: list[list[tuple[object, object, object]]] = [
        [(None, None, None)],
        [(b"", None, None)],
        [(None, b"", None)],
        [(b"", b"", None)],
        [(b"", b"", [])],
        [(b"a", b"b", None)],
        [(b"b", b"a", None)],
        [(b"ab", b"", None)],
        [(b"a", b"b", [header])],
        [(b"a", b"b", [header, header])],
        [(b"a", b"b", [header, other])],
        [(b"a", b"b", [other, header])],
        [(b"a", b"b", [{"key": "a", "value": None}])],
        [(b"a", b"b", [{"key": "a", "value": b""}])],
        [(b"a", b"b", [{"key": "x", "value": b"a"}])],
        [(b"a", b"b", None), (None, None, None)],
        [(b"a", b"b", None), (b"a", b"b", None)],
        [(b"a", b"c", [header]), (b"a", b"b", None)],
        [(b"a", b"c", None), (b"a", b"b", [header])],
    ]
    assert len({of(*batch) for batch in batches}) == len(batches)


def test_topic_and_explicit_partition_count() -> None:
    table = table_of([(b"k", b"v", None, 1)] * 2)
    seen = {fingerprint(table, "t"), fingerprint(table, "u"), fingerprint(table, pa.array(["t", "u"]))}
    seen |= {fingerprint(table, "t", pa.array(p, pa.int32())) for p in ([0, 0], [0, None], [0, 1], [1, 1])}
    assert len(seen) == 7
    mixed = fingerprint(table, pa.array(["t", "u"]), pa.array([0, 1], pa.int32()))
    assert mixed == fingerprint(table, pa.array(["u", "t"]), pa.array([1, 0], pa.int32()))
    assert mixed != fingerprint(table, pa.array(["t", "u"]), pa.array([1, 0], pa.int32()))


@pytest.mark.parametrize("size", [1000, 65_536, 3_000_001])
def test_long_values(size: int) -> None:
    value = bytes(range(256)) * (size // 256 + 1)
    base = of((None, value[:size], None), (None, b"x", None))
    assert base == of((None, b"x", None), (None, value[:size], None))
    assert base != of((None, value[: size - 1], None), (None, b"x", None))
