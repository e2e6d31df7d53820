"""Converts columns to JSON like Spark's to_json, but with the microseconds of timestamps."""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

_LOCAL_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
TIMESTAMP_FORMAT = f"{_LOCAL_FORMAT}XXX"
"""The format with microseconds. The default format of to_json truncates timestamps to milliseconds."""
_WITH_SECONDS_OF_ZONE = f"{_LOCAL_FORMAT}XXXXX"
"""Also has the seconds of a zone's offset (local mean time). spark.sql.legacy.timeParserPolicy=LEGACY refuses it."""
_OPTIONS = {st.TimestampType: "timestampFormat", st.TimestampNTZType: "timestampNTZFormat"}
"""The option of to_json with the format of each timestamp type."""
_Types = tuple[type[st.DataType], ...]


def json_text(frame: DataFrame, column: Column, options: Mapping[str, str] | None = None) -> Column:
    """Return a struct, array or map over the columns of `frame` as JSON. `options` are those of to_json.

    If a timestamp in the value has microseconds, all its timestamps have six digits after the point. Otherwise they
    have three, as to_json writes them: so a key that to_json wrote without loss stays the same. A format in `options`
    has precedence.
    """
    to_json_options = dict(options or {})
    named = set(map(str.lower, to_json_options))
    kind = frame.select(column.alias("it")).schema["it"].dataType
    cut = tuple(each for each, name in _OPTIONS.items() if name.lower() not in named and _contains(kind, (each,)))
    text = sf.to_json(column, to_json_options or None)  # Spark Connect refuses an empty map
    if not cut:
        return text
    whole = sf.to_json(column, {**to_json_options, **{_OPTIONS[each]: _format(frame, each) for each in cut}})
    return sf.when(_has_microseconds(column, kind, cut), whole).otherwise(text)


def _format(frame: DataFrame, timestamp: type[st.DataType]) -> str:
    """Return the pattern with microseconds for a timestamp type."""
    if timestamp is st.TimestampNTZType:
        return _LOCAL_FORMAT
    policy = frame.sparkSession.conf.get("spark.sql.legacy.timeParserPolicy") or ""
    return TIMESTAMP_FORMAT if policy.upper() == "LEGACY" else _WITH_SECONDS_OF_ZONE


def _contains(kind: st.DataType, timestamps: _Types) -> bool:
    """Whether values of a type contain timestamps of these types. Keys of maps do not count."""
    match kind:
        case st.StructType():
            return any(_contains(field.dataType, timestamps) for field in kind.fields)
        case st.ArrayType():
            return _contains(kind.elementType, timestamps)
        case st.MapType():
            return _contains(kind.valueType, timestamps)
    return isinstance(kind, timestamps)


def _has_microseconds(column: Column, kind: st.DataType, timestamps: _Types) -> Column:
    """Return the condition that a timestamp of these types in a column has microseconds beyond its milliseconds."""
    match kind:
        case st.StructType():
            if len(set(map(str.lower, kind.names))) < len(kind.names):  # fields with such names cannot be selected
                kind = st.StructType([st.StructField(f"{n}", each.dataType) for n, each in enumerate(kind.fields)])
                column = column.cast(kind)
            fields = [field for field in kind.fields if _contains(field.dataType, timestamps)]
            parts = (_has_microseconds(column.getField(field.name), field.dataType, timestamps) for field in fields)
            return reduce(Column.__or__, parts)
        case st.ArrayType():
            return sf.exists(column, lambda item: _has_microseconds(item, kind.elementType, timestamps))
        case st.MapType():
            return _has_microseconds(sf.map_values(column), st.ArrayType(kind.valueType), timestamps)
    return sf.extract(sf.lit("SECOND"), column) * 1000 % 1 != 0
