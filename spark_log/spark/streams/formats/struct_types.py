"""Structs of a DataFrame as those of a schema: fields by name without regard to case, each of the same or a narrower
type.
"""

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from spark_log.errors import InvalidOptionError

_INTEGERS: tuple[type[st.DataType], ...] = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
"""Each fits into those that follow."""
_DIGITS = dict(zip(_INTEGERS, (3, 5, 10, 19), strict=True))


def fitted(given: st.DataType, wanted: st.DataType, path: str) -> st.DataType:
    """`wanted` without the fields that `given` lacks. InvalidOptionError names a field that `wanted` lacks or that does
    not fit.
    """
    match given, wanted:
        case st.StructType(), st.StructType():
            return st.StructType(_fields(given, wanted, path))
        case st.ArrayType(), st.ArrayType():
            return st.ArrayType(fitted(given.elementType, wanted.elementType, f"{path}[]"))
        case st.MapType(keyType=st.StringType()), st.MapType():
            return st.MapType(wanted.keyType, fitted(given.valueType, wanted.valueType, f"{path}{{}}"))
    if not _fits(given, wanted):
        raise InvalidOptionError(
            f"column {path}: {given.simpleString()} does not fit {wanted.simpleString()}, cast the column"
        )
    return wanted


def _fields(given: st.StructType, wanted: st.StructType, path: str) -> list[st.StructField]:
    by_name: dict[str, st.StructField] = {}
    for field in given.fields:
        if (other := by_name.setdefault(field.name.lower(), field)) is not field:
            raise InvalidOptionError(f"column {path}.{field.name}: its name is that of {other.name} without case")
    names = {field.name.lower() for field in wanted.fields}
    for name, field in by_name.items():
        if name not in names:
            raise InvalidOptionError(f"column {path}.{field.name}: the schema has no such field")
    return [
        st.StructField(field.name, fitted(by_name[field.name.lower()].dataType, field.dataType, f"{path}.{field.name}"))
        for field in wanted.fields
        if field.name.lower() in by_name
    ]


def _fits(given: st.DataType, wanted: st.DataType) -> bool:
    if given == wanted or isinstance(given, st.NullType):
        return True
    if isinstance(given, st.StringType):
        return isinstance(wanted, st.StringType)
    if isinstance(given, _INTEGERS):
        if isinstance(wanted, st.DecimalType):
            return wanted.precision - wanted.scale >= _DIGITS[type(given)]
        if isinstance(wanted, st.DoubleType):
            return not isinstance(given, st.LongType)
        return isinstance(wanted, _INTEGERS) and _DIGITS[type(given)] <= _DIGITS[type(wanted)]
    if isinstance(given, st.DecimalType) and isinstance(wanted, st.DecimalType):
        return given.scale <= wanted.scale and given.precision - given.scale <= wanted.precision - wanted.scale
    return isinstance(given, st.FloatType) and isinstance(wanted, st.DoubleType)


def converted(column: Column, given: st.DataType, wanted: st.DataType) -> Column:
    """The column as `wanted`: missing fields are null, and fields that it does not have are left out."""
    if _same(given, wanted):
        return column
    match given, wanted:
        case st.StructType(), st.StructType():
            by_name = {field.name.lower(): field for field in given.fields}
            fields = [
                converted(column.getField(by_name[name].name), by_name[name].dataType, field.dataType).alias(field.name)
                if (name := field.name.lower()) in by_name
                else sf.lit(None).cast(field.dataType).alias(field.name)
                for field in wanted.fields
            ]
            return sf.when(column.isNotNull(), sf.struct(*fields))
        case st.ArrayType(), st.ArrayType():
            return sf.transform(column, lambda item: converted(item, given.elementType, wanted.elementType))
        case st.MapType(), st.MapType():
            return sf.transform_values(column, lambda _, item: converted(item, given.valueType, wanted.valueType))
    return column.cast(wanted)


def _same(given: st.DataType, wanted: st.DataType) -> bool:
    """Whether the types are the same but for nullability and metadata."""
    match given, wanted:
        case st.StructType(), st.StructType():
            return [field.name for field in given.fields] == [field.name for field in wanted.fields] and all(
                _same(one.dataType, other.dataType) for one, other in zip(given.fields, wanted.fields, strict=True)
            )
        case st.ArrayType(), st.ArrayType():
            return _same(given.elementType, wanted.elementType)
        case st.MapType(), st.MapType():
            return given.keyType == wanted.keyType and _same(given.valueType, wanted.valueType)
    return given == wanted
