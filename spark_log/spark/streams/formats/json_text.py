"""`json_text` is Spark's to_json that keeps the microseconds of timestamps."""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

_LOCAL_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
TIMESTAMP_FORMAT = f"{_LOCAL_FORMAT}XXX"
"""The default of to_json has milliseconds, and cuts off the rest."""
_WITH_SECONDS_OF_ZONE = f"{_LOCAL_FORMAT}XXXXX"
"""Also has the seconds of local mean times. Spark refuses it with spark.sql.legacy.timeParserPolicy=LEGACY."""
_OPTIONS = {st.TimestampType: "timestampFormat", st.TimestampNTZType: "timestampNTZFormat"}
"""The option of to_json with the format of the values of each type."""
_Types = tuple[type[st.DataType], ...]


def json_text(frame: DataFrame, column: Column, options: Mapping[str, str] | None = None) -> Column:
    """Return a struct, array or map of the columns of `frame` as JSON. `options` are those of to_json.

    If a timestamp in it has microseconds, all of its timestamps have six digits after the point. Otherwise the text is
    that of to_json, with three: so a key that to_json wrote without a loss stays the same. A format in `options`
    prevails.
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
    """Return the pattern that has the microseconds of values of a type of timestamps."""
    if timestamp is st.TimestampNTZType:
        return _LOCAL_FORMAT
    policy = frame.sparkSession.conf.get("spark.sql.legacy.timeParserPolicy") or ""
    return TIMESTAMP_FORMAT if policy.upper() == "LEGACY" else _WITH_SECONDS_OF_ZONE


def _contains(kind: st.DataType, timestamps: _Types) -> bool:
    """Whether values of a type contain timestamps of these types, other than as keys of maps."""
    match kind:
        case st.StructType():
            return any(_contains(field.dataType, timestamps) for field in kind.fields)
        case st.ArrayType():
            return _contains(kind.elementType, timestamps)
        case st.MapType():
            return _contains(kind.valueType, timestamps)
    return isinstance(kind, timestamps)


def _has_microseconds(column: Column, kind: st.DataType, timestamps: _Types) -> Column:
    """Return the condition that one of the timestamps of these types in a column is not a whole millisecond."""
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
