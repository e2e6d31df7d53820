"""Changes of many rows by one statement with arrays on PostgreSQL, by one statement for each row on SQLite."""

import json

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql

from spark_log.errors import MetadataStoreError
from spark_log.metadata import row_arrays
from spark_log.metadata.prepared import Prepared, in_list

VALUES = sa.Table(
    "array_values",
    sa.MetaData(),
    sa.Column("key", sa.BigInteger, primary_key=True),
    sa.Column("number", sa.Integer),
    sa.Column("text", sa.String(8)),
    sa.Column("flag", sa.Boolean),
    sa.Column("data", sa.LargeBinary),
)
INSERT = Prepared(VALUES.insert())
UPDATE = Prepared(
    VALUES.update()
    .where(VALUES.c.key == sa.bindparam("which"), VALUES.c.number == sa.bindparam("was"))
    .values(text=sa.bindparam("text"), number=VALUES.c.number + sa.bindparam("more"))
)
DELETE = Prepared(VALUES.delete().where(VALUES.c.key == sa.bindparam("which"), VALUES.c.text == sa.bindparam("text")))
TEXTS = ["", "NULL", "null", "a,b", "{}", '"', "\\", '\\"', " x ", "ä€😀", "line\nend", "None", None]


@pytest.fixture
def store(cluster):
    VALUES.create(cluster.store.engine)
    yield cluster.store
    VALUES.drop(cluster.store.engine)


def rows(store):
    return store.read(lambda c: [tuple(row) for row in c.execute(sa.select(VALUES).order_by(VALUES.c.key))])


@pytest.mark.parametrize("count", [15, 16, 500])
@pytest.mark.parametrize("size", [3, 5_000])
def test_many_rows_are_changed_as_one_row_at_a_time_would_be(store, count, size):
    expected = {
        key: (
            key,
            None if key % 7 == 0 else key % 50 - 25,
            TEXTS[key % len(TEXTS)],
            None if key % 5 == 0 else key % 2 == 0,
            None if key % 11 == 0 else bytes([key % 256, 0, 255]) * (size // 3),
        )
        for key in range(count)
    }
    new = [dict(zip(VALUES.columns.keys(), row, strict=True)) for row in expected.values()]
    store.transact(lambda c: INSERT.run(c, new))
    assert rows(store) == list(expected.values())
    if not store.sqlite:
        uses_arrays = row_arrays.as_arrays(INSERT._for_rows, new) is not None
        assert uses_arrays == (count >= 16 and size == 3), "long bytes are sent row by row"

    changes = [{"which": key, "was": key % 50 - 25, "text": f"t{key}", "more": 2**20} for key in range(0, count, 3)]
    store.transact(lambda c: UPDATE.run(c, changes))
    for change in changes:
        key, number, _, flag, data = expected[change["which"]]
        if number is not None:
            expected[key] = (key, number + 2**20, change["text"], flag, data)
    assert rows(store) == list(expected.values())

    gone = [{"which": key, "text": f"t{key}"} for key in range(count // 2 + 8)]
    store.transact(lambda c: DELETE.run(c, gone))
    assert rows(store) == [row for row in expected.values() if {"which": row[0], "text": row[2]} not in gone]


@pytest.mark.parametrize("cluster_address", ["postgres"], indirect=True)  # SQLite does not limit the length of text
def test_a_text_that_is_too_long_is_refused_and_not_cut(store):
    some = [{"key": key, "number": 0, "text": "123456789", "flag": True, "data": b""} for key in range(20)]
    with pytest.raises(MetadataStoreError, match="too long"):
        store.transact(lambda c: INSERT.run(c, some))
    assert rows(store) == []


@pytest.mark.parametrize(
    "statement",
    [
        sa.select(VALUES).where(VALUES.c.key == sa.bindparam("which")),
        postgresql.insert(VALUES).on_conflict_do_nothing(),
        VALUES.insert().returning(VALUES.c.key),
        VALUES.update().where(VALUES.c.key < sa.bindparam("which")).values(text=sa.bindparam("text")),
        VALUES.delete().where(in_list(VALUES.c.key, "keys")),
    ],
)
def test_other_statements_are_run_row_by_row(statement):
    columns = ["key", "text"] if isinstance(statement, sa.Insert) else None
    compiled = statement.compile(dialect=postgresql.psycopg.dialect(), column_keys=columns)
    assert row_arrays.array_statement(statement, compiled) is None


@given(st.lists(st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"))))
def test_the_text_form_of_an_array_of_texts_can_be_read_back(values):
    """PostgreSQL's rules: elements in double quotes, backslash before a quote or a backslash, NULL without quotes."""
    text, found, place = row_arrays.as_text(values), [], 1
    assert text[0] + text[-1] == "{}"
    while place < len(text) - 1:
        if text.startswith("NULL", place):
            found.append(None)
            place += 4
        else:
            assert text[place] == '"'
            element, place = "", place + 1
            while text[place] != '"':
                place += text[place] == "\\"
                element += text[place]
                place += 1
            found.append(element)
            place += 1
        assert text[place] in ",}"
        place += 1
    assert found == values


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)) | st.lists(st.none() | st.booleans()))
def test_the_text_form_of_an_array_of_numbers_or_booleans(values):
    text = row_arrays.as_text(values).replace("NULL", "null").lower()
    assert json.loads(f"[{text[1:-1]}]") == values
