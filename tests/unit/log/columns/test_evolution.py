"""Evolution of columns."""

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_log.errors import IncompatibleSchemaError
from spark_log.log.columns.evolution import evolve
from spark_log.log.columns.types import list_of, parse_ddl, to_ddl

from .strategies import SCHEMAS


def evolved(*schemas: pa.StructType) -> pa.StructType:
    """The columns after these schemas, one after the other. Skips the example if one is refused."""
    fields = schemas[0]
    for schema in schemas[1:]:
        try:
            fields = evolve(fields, schema)
        except IncompatibleSchemaError:
            assume(False)
    return fields


def paths(kind: pa.DataType, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """The leaf type at each path; a nested type has its kind."""
    if pa.types.is_struct(kind):
        children = {field.name: field.type for field in kind}
    elif pa.types.is_list(kind):
        children = {"element": kind.value_type}
    elif pa.types.is_map(kind):
        children = {"value": kind.item_type}
    else:
        return {path: str(kind)}
    found = {path: type(kind).__name__}
    for name, child in children.items():
        found |= paths(child, (*path, name))
    return found


@st.composite
def compatible(draw: st.DrawFn, count: int) -> list[pa.StructType]:
    """Schemas that take parts of one, so that they are compatible."""
    whole = draw(SCHEMAS)
    return [_part(draw, whole) for _ in range(count)]


def _part(draw: st.DrawFn, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        names = draw(st.lists(st.sampled_from([field.name for field in kind]), min_size=1, unique=True))
        return pa.struct([(name, _part(draw, kind.field(name).type)) for name in names])
    if pa.types.is_list(kind):
        return list_of(_part(draw, kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _part(draw, kind.item_type))
    return kind


@given(SCHEMAS)
def test_the_same_schema_changes_nothing(schema: pa.StructType) -> None:
    assert evolve(schema, schema) == schema


@settings(max_examples=50)
@given(compatible(2))
def test_columns_stay_in_place_and_new_ones_follow(schemas: list[pa.StructType]) -> None:
    current, new = schemas
    fields = evolve(current, new)
    names = [field.name for field in fields]
    assert names[: len(current)] == [field.name for field in current]
    assert names[len(current) :] == [field.name for field in new if field.name not in names[: len(current)]]
    assert paths(fields) == paths(current) | paths(new)
    assert evolve(fields, new) == fields


@settings(max_examples=50)
@given(compatible(3))
def test_the_columns_do_not_depend_on_the_versions_in_between(schemas: list[pa.StructType]) -> None:
    first, second, third = schemas
    assert evolved(evolved(first, second), third) == evolved(first, evolved(second, third))


@settings(max_examples=50)
@given(SCHEMAS, SCHEMAS)
def test_refusal_does_not_depend_on_the_direction(one: pa.StructType, other: pa.StructType) -> None:
    outcomes = [_outcome(one, other), _outcome(other, one)]
    if not any("decimal" in kind for schema in (one, other) for kind in paths(schema).values()):
        assert outcomes[0] == outcomes[1]


def _outcome(current: pa.StructType, new: pa.StructType) -> dict[tuple[str, ...], str] | None:
    try:
        return paths(evolve(current, new))
    except IncompatibleSchemaError:
        return None


def test_removed_fields_stay_and_new_ones_follow_in_each_struct() -> None:
    current = parse_ddl("a INT, s STRUCT<x: INT, gone: STRUCT<b: INT>>, l ARRAY<STRUCT<n: INT>>, old STRING")
    new = parse_ddl(
        "fresh STRUCT<q: INT>, l ARRAY<STRUCT<m: INT, n: BIGINT>>, s STRUCT<y: MAP<STRING, INT>, x: INT>, a INT"
    )
    assert to_ddl(evolve(current, new)) == (
        "a BIGINT, s STRUCT<x: BIGINT, gone: STRUCT<b: BIGINT>, y: MAP<STRING, BIGINT>>, "
        "l ARRAY<STRUCT<n: BIGINT, m: BIGINT>>, old STRING, fresh STRUCT<q: BIGINT>"
    )


def test_every_refused_path_is_named_with_the_reason() -> None:
    current = parse_ddl("a INT, s STRUCT<x: INT>, l ARRAY<STRING>, m MAP<STRING, DATE>, d DECIMAL(5, 2), e STRING")
    new = parse_ddl(
        "a DOUBLE, s STRING, l ARRAY<BINARY>, m MAP<STRING, STRUCT<y: INT>>, d DECIMAL(6, 2), E STRING, fresh INT"
    )
    with pytest.raises(IncompatibleSchemaError) as refusal:
        evolve(current, new)
    assert str(refusal.value) == (
        "schema: a: the column is BIGINT, not DOUBLE; s: the column is STRUCT, not STRING; "
        "l.element: the column is STRING, not BINARY; m.value: the column is DATE, not STRUCT; "
        "d: the column is DECIMAL(5, 2), not DECIMAL(6, 2); E: differs from column e in case only"
    )


def test_a_narrower_decimal_keeps_the_column() -> None:
    current = parse_ddl("d DECIMAL(10, 2)")
    for fits in ("d DECIMAL(9, 2)", "d DECIMAL(8, 0)", "d DECIMAL(9, 1)"):
        assert evolve(current, parse_ddl(fits)) == current
    for wider in ("d DECIMAL(11, 2)", "d DECIMAL(10, 3)", "d DECIMAL(10, 0)"):
        with pytest.raises(IncompatibleSchemaError):
            evolve(current, parse_ddl(wider))


def test_the_limits_hold_for_the_union() -> None:
    def fields(start: int) -> pa.StructType:
        return parse_ddl(", ".join(f"f{number} INT" for number in range(start, start + 6000)))

    with pytest.raises(IncompatibleSchemaError, match="more than 10000 fields, with the columns that the topic has"):
        evolve(fields(0), fields(6000))
