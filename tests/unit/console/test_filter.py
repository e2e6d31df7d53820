"""Filters: the same records as DuckDB's WHERE, and errors that name the place of what is not allowed."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_log.console.search.batch_columns import text_of
from spark_log.console.search.filter import compile_filter
from spark_log.console.search.filter_syntax import FilterError
from spark_log.log.records.schema import HEADERS, TIMESTAMP
from spark_log.log.segments.slices import Condition, FieldFilter

RECORD = pa.struct(
    [
        ("price", pa.float64()),
        ("n", pa.int64()),
        ("cost", pa.decimal128(10, 2)),
        ("item", pa.string()),
        ("day", pa.date32()),
        ("paid", pa.bool_()),
        ("inner", pa.struct([("n", pa.int64())])),
        ("tags", pa.list_(pa.string())),
    ]
)
TYPED = pa.struct([("record_error", pa.string()), ("record", RECORD)])
START = datetime(2026, 1, 1, tzinfo=UTC)

texts = st.text(alphabet="aAb%_\\'\n1é", max_size=4)
numbers = st.integers(-(10**6), 10**6)
records = st.fixed_dictionaries(
    {},
    optional={
        "price": st.integers(-50, 50).map(lambda n: n / 4),
        "n": numbers | st.sampled_from([2**60, 2**60 + 1, -(2**63)]),
        "cost": st.integers(-500, 500).map(lambda n: Decimal(n) / 100),
        "item": texts,
        "day": st.integers(0, 3).map(lambda n: date(2026, 1, 1) + timedelta(n)),
        "paid": st.booleans(),
        "inner": st.fixed_dictionaries({}, optional={"n": numbers}),
    },
)
rows = st.tuples(st.none() | texts, st.none() | texts, st.integers(0, 5), st.none() | records)


def batch_of(found):
    keys, values, minutes, structs = zip(*found, strict=True)
    columns = {
        "key": pa.array([None if each is None else each.encode() for each in keys], pa.binary()),
        "value": pa.array([None if each is None else each.encode() for each in values], pa.binary()),
        "offset": pa.array(range(10, 10 + len(found)), pa.int64()),
        "partition": pa.array([0] * len(found), pa.int32()),
        "timestamp": pa.array([START + timedelta(minutes=n) for n in minutes], TIMESTAMP),
        "headers": pa.array([None] * len(found), HEADERS),
        "record": pa.array(structs, RECORD),
    }
    return pa.RecordBatch.from_pydict(columns)


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


leaves = (
    st.sampled_from(["offset", "partition", "record.price", "record.n", "record.cost", "record.inner.n", "LENGTH(key)"])
    | st.integers(-20, 20).map(str)
    | st.sampled_from(["1.5", "-0.25", "1e1", "1152921504606846976", "NULL"])
)
sums = st.recursive(
    leaves.map("[{}]".format),  # DuckDB gets it as a DOUBLE: arithmetic is that of DOUBLE
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: f"({' '.join(parts)})"),
    max_leaves=3,
).filter(lambda text: text.startswith("("))
number_terms = leaves | sums
text_terms = st.sampled_from(["key", "value", "record.item", "LOWER(key)", "UPPER(value)"]) | texts.map(quoted)
times = st.integers(0, 5).map(lambda n: f"TIMESTAMP '2026-01-01 00:0{n}:00'")
comparisons = st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="])
items = texts.map(quoted) | st.just("NULL")
betweens = st.sampled_from(["BETWEEN", "NOT BETWEEN"])
atoms = st.one_of(
    st.tuples(number_terms, comparisons, number_terms).map(" ".join),
    st.tuples(text_terms, comparisons, text_terms).map(" ".join),
    st.tuples(st.just("timestamp"), comparisons, times).map(" ".join),
    st.tuples(st.just("record.day"), comparisons, st.sampled_from(["'2026-01-02'", "DATE '2026-01-03'"])).map(" ".join),
    st.tuples(text_terms, st.sampled_from(["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"]), texts.map(quoted)).map(" ".join),
    st.builds("{} {} ({}, {})".format, text_terms, st.sampled_from(["IN", "NOT IN"]), items, items),
    st.builds("{} {} {} AND {}".format, number_terms, betweens, number_terms, number_terms),
    st.builds("{} IS {}NULL".format, text_terms | number_terms | st.just("record.day"), st.sampled_from(["", "NOT "])),
    st.sampled_from(["record.paid", "record.paid = true", "TRUE", "record IS NULL", "record.inner IS NOT NULL"]),
)  # fmt: skip
filters = st.recursive(
    atoms,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda parts: f"({' '.join(parts)})")
        | inner.map(lambda one: f"NOT ({one})")
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def database():
    with duckdb.connect() as connection:
        connection.execute("SET ieee_floating_point_ops = false")  # a division by zero is null
        yield connection


@pytest.mark.parametrize("examples", [100, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_filter_finds_the_records_that_duckdb_finds(database, examples):
    of_rows = given(database=st.just(database), found=st.lists(rows, min_size=1, max_size=12), text=filters)
    settings(max_examples=examples)(of_rows(check_against_duckdb))()


def check_against_duckdb(database, found, text):
    batch = batch_of(found)
    plain = batch.set_column(0, "key", batch.column("key").cast(pa.string()))
    plain = plain.set_column(1, "value", plain.column("value").cast(pa.string()))
    plain = plain.set_column(4, "timestamp", plain.column("timestamp").cast(pa.timestamp("us")))  # no zones without ICU
    database.register("batch", plain)
    theirs = text.replace("[", "CAST(").replace("]", " AS DOUBLE)")
    for name in ("offset", "timestamp "):
        theirs = theirs.replace(name, f'"{name.strip()}" ')
    expected = database.sql(f'SELECT "offset" FROM batch WHERE {theirs}').fetchall()
    mask = compile_filter(text.replace("[", "").replace("]", ""), TYPED).mask(batch)
    assert batch.filter(mask).column("offset").to_pylist() == [offset for (offset,) in expected]


NOT_UTF_8 = [b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\x80"]


def test_bytes_that_are_not_utf8_match_no_text_and_are_not_null():
    values = [b"a", *NOT_UTF_8, "é€😀".encode(), None, b""]
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    assert compile_filter("value IS NULL").mask(batch).to_pylist() == [each is None for each in values]
    assert sum(compile_filter("value LIKE '%'").mask(batch).to_pylist()) == 3


@given(
    st.lists(st.none() | st.binary(max_size=6) | st.sampled_from(NOT_UTF_8) | st.text(max_size=4).map(str.encode)),
    st.integers(0, 3),
)
def test_text_is_what_python_decodes(values, start):
    def decoded(value):
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError:
            return None

    expected = [decoded(value) for value in values[start:]]
    assert text_of(pa.array(values, pa.binary()).slice(start)).to_pylist() == expected


def test_headers_json_and_times():
    batch = pa.RecordBatch.from_pydict({
        "key": pa.array([b"1", b"{}", None]),
        "value": pa.array([b'{"a": {"b": 3.5}, "s": "x", "t": "2026-01-01T00:00:00Z"}', b'{"a": 7, "s": 5}', b"\xff"]),
        "timestamp": pa.array([START] * 3, TIMESTAMP),
        "headers": pa.array([[("h", b"1"), ("h", b"2")], None, [("h", None)]], HEADERS),
    })  # fmt: skip
    for text, expected in [
        ("headers['h'] = '2'", [True, False, False]),
        ("headers.h IS NULL", [False, True, True]),
        ("value.a.b > 3", [True, False, False]),
        ("value.a = 7", [False, True, False]),
        ("value.s = 'x'", [True, False, False]),
        ("value.s > 4", [False, True, False]),
        ("value.a IS NOT NULL", [True, True, False]),
        ("value.t < TIMESTAMP '2026-01-02'", [True, False, False]),
        ("value.missing = 1 OR value.a = 7", [False, True, False]),
        ("timestamp = 1767225600000", [True] * 3),
        ("timestamp > 1767225599999.5 AND timestamp < 1767225600000.5", [True] * 3),
        ("timestamp >= '2026-01-01T01:00:00+01:00'", [True] * 3),
        ("key = '1' OR NULL", [True, False, False]),
    ]:
        assert compile_filter(text).mask(batch).to_pylist() == expected, text


def test_comparisons_of_typed_columns_prune():
    found = compile_filter(
        "record.n > 3 AND (record.item = 'a' AND 2 >= record.price) AND (key = 'k' OR record.n = 1)", TYPED
    )
    assert found.prunes == (
        FieldFilter(("record", "n"), Condition.ABOVE, (3,)),
        FieldFilter(("record", "item"), Condition.IN, ("a",)),
        FieldFilter(("record", "price"), Condition.AT_MOST, (2.0,)),
    )
    assert found.columns == {"key"}
    assert found.typed == {("record", "n"), ("record", "item"), ("record", "price")}


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("offset > 'a'", 10, "a text where a whole number is needed"),
        ("key = 'a' AND records.n = 1", 15, "no column records.n"),
        ("record.prize > 1", 1, "record has price, n"),
        ("key = 'a' b", 11, "not a condition"),
        ("key = 'a'; key = 'b'", 10, "second statement"),
        ("__import__('os')", 1, r"__import__\( is not allowed"),
        ("key IN (SELECT 1)", None, "not allowed"),
        ("key LIKE 'a' ESCAPE '/'", 1, "Escape is not allowed"),
        ("key::int = 1", 1, "Cast is not allowed"),
        ("CAST(key AS INT) = 1", 1, r"CAST\( is not allowed"),
        ("key = 'a' (1)", 7, r"a\( is not allowed"),
        ("headers[key] = 'a'", 8, r"\[ \] is for headers"),
        ("{key} = 'a'", 1, r"\{ is not allowed"),
        ("LENGTH(key, 1) = 1", None, "not allowed"),
        ("key LIKE value", 10, "not a text in quotes"),
        ("record.tags = 1", None, "struct, array or map"),
        ("timestamp > 'soon'", 13, "not a time"),
        ("value['a'] = 1", 1, r"\[ \] is for headers"),
        ("SELECT 1", 1, "not a condition"),
        ("1", 1, "where a condition is needed"),
        ("", None, "empty"),
        ("key = 'a", None, "not a condition"),
        ("(" * 30 + "true" + ")" * 30, 21, "nested deeper than 20"),
        ("NOT " * 300 + "true", None, "nested too deep"),
        ("true" + " AND true" * 300, None, "at most 400"),
        ("key = '" + "x" * 5000 + "'", None, "at most 4000"),
        ("key LIKE '" + "%a_" * 100 + "'", 10, "at most 200"),
        ("key = '\x00'", 8, "NUL"),
    ],
)  # fmt: skip
def test_errors_name_the_place(text, place, message):
    with pytest.raises(FilterError, match=message) as failure:
        compile_filter(text, TYPED)
    assert place is None or f"at character {place}: " in str(failure.value)


def test_a_filter_has_at_most_eight_fields_of_json():
    fields = [f"value.f{number} = 1" for number in range(8)]
    repeated = " AND ".join([*fields, "value.f0 > 0"])
    assert compile_filter(repeated).columns == {"value"}
    with pytest.raises(FilterError, match="more than 8 fields of JSON"):
        compile_filter(" AND ".join([*fields, "key.f0 = 1"]))


@pytest.mark.parametrize(
    ("before", "after"),
    [("STRUCT(", ")"), ("DECIMAL(", ")"), ("OBJECT(", ")"), ("timestamp (", ")"), ("UNION(", ")"), ("DATE[", "]"),
     ("1 = NULL[", "]"), ("key::ABS[", "]"), ("1 = IF{", "}")],
)  # fmt: skip
def test_types_in_types_do_not_multiply_the_work_of_the_parser(before, after):
    with pytest.raises(FilterError, match=r"at character \d+: "):
        compile_filter(before * 20 + "1" + after * 20)


@pytest.mark.parametrize("condition", ["({}) IN (FALSE, TRUE, FALSE, TRUE)", "({}) BETWEEN FALSE AND TRUE"])
def test_conditions_in_conditions_do_not_multiply_the_work_on_a_batch(condition):
    text = "key = 'a'"
    for _ in range(20):
        text = condition.format(text)
    batch = batch_of([("a", None, 0, None), ("b", None, 0, None), (None, None, 0, None)] * 10_000)
    expected = [True, True, False] * 10_000  # null is neither
    assert compile_filter(text).mask(batch).to_pylist() == expected


words = st.sampled_from(
    "key value record n offset timestamp headers [ ] ( ) . , ' ''  'a' 1 -1 1e9 = != < AND OR NOT IN LIKE IS NULL"
    ' BETWEEN CASE WHEN THEN END SELECT FROM * ; -- /* */ " ` @ ? : :: $ { } CAST( AS INT TIMESTAMP DATE INTERVAL'
    " LENGTH( LOWER( DROP TABLE topic lambda -> || % \\ \x00 é exec( __class__".split(" ")
)


@pytest.mark.parametrize("examples", [400, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_hostile_text_is_an_error_or_a_filter(examples):
    of_texts = given(st.lists(words, max_size=12).map(" ".join) | st.text(max_size=40))
    settings(max_examples=examples)(of_texts(check_hostile))()


def check_hostile(text):
    batch = batch_of([("a", "b", 0, {"n": 1}), (None, None, 1, None)])
    try:
        found = compile_filter(text, TYPED)
    except FilterError:
        return
    assert len(found.mask(batch)) == 2
