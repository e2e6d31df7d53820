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


def fitted(source: st.DataType, target: st.DataType, path: str) -> st.DataType:
    """`target` without the fields that `source` lacks. InvalidOptionError names a field that `target` lacks or that
    does not fit.
    """
    match source, target:
        case st.StructType(), st.StructType():
            return st.StructType(_fields(source, target, path))
        case st.ArrayType(), st.ArrayType():
            return st.ArrayType(fitted(source.elementType, target.elementType, f"{path}[]"))
        case st.MapType(keyType=st.StringType()), st.MapType():
            return st.MapType(target.keyType, fitted(source.valueType, target.valueType, f"{path}{{}}"))
    if not _fits(source, target):
        raise InvalidOptionError(
            f"column {path}: {source.simpleString()} does not fit {target.simpleString()}, cast the column"
        )
    return target


def _fields(source: st.StructType, target: st.StructType, path: str) -> list[st.StructField]:
    by_name: dict[str, st.StructField] = {}
    for field in source.fields:
        if (other := by_name.setdefault(field.name.lower(), field)) is not field:
            raise InvalidOptionError(f"column {path}.{field.name}: its name is that of {other.name} without case")
    names = {field.name.lower() for field in target.fields}
    for name, field in by_name.items():
        if name not in names:
            raise InvalidOptionError(f"column {path}.{field.name}: the schema has no such field")
    return [
        st.StructField(field.name, fitted(by_name[field.name.lower()].dataType, field.dataType, f"{path}.{field.name}"))
        for field in target.fields
        if field.name.lower() in by_name
    ]


def _fits(source: st.DataType, target: st.DataType) -> bool:
    if source == target or isinstance(source, st.NullType):
        return True
    if isinstance(source, st.StringType):
        return isinstance(target, st.StringType)
    if isinstance(source, _INTEGERS):
        if isinstance(target, st.DecimalType):
            return target.precision - target.scale >= _DIGITS[type(source)]
        if isinstance(target, st.DoubleType):
            return not isinstance(source, st.LongType)
        return isinstance(target, _INTEGERS) and _DIGITS[type(source)] <= _DIGITS[type(target)]
    if isinstance(source, st.DecimalType) and isinstance(target, st.DecimalType):
        return source.scale <= target.scale and source.precision - source.scale <= target.precision - target.scale
    return isinstance(source, st.FloatType) and isinstance(target, st.DoubleType)


def converted(column: Column, source: st.DataType, target: st.DataType) -> Column:
    """The column as `target`: missing fields are null, and fields that it does not have are left out."""
    if _same(source, target):
        return column
    match source, target:
        case st.StructType(), st.StructType():
            by_name = {field.name.lower(): field for field in source.fields}
            fields = [
                converted(column.getField(by_name[name].name), by_name[name].dataType, field.dataType).alias(field.name)
                if (name := field.name.lower()) in by_name
                else sf.lit(None).cast(field.dataType).alias(field.name)
                for field in target.fields
            ]
            return sf.when(column.isNotNull(), sf.struct(*fields))
        case st.ArrayType(), st.ArrayType():
            return sf.transform(column, lambda item: converted(item, source.elementType, target.elementType))
        case st.MapType(), st.MapType():
            return sf.transform_values(column, lambda _, item: converted(item, source.valueType, target.valueType))
    return column.cast(target)


def _same(source: st.DataType, target: st.DataType) -> bool:
    """Whether the types are the same but for nullability and metadata."""
    match source, target:
        case st.StructType(), st.StructType():
            return [field.name for field in source.fields] == [field.name for field in target.fields] and all(
                _same(one.dataType, other.dataType) for one, other in zip(source.fields, target.fields, strict=True)
            )
        case st.ArrayType(), st.ArrayType():
            return _same(source.elementType, target.elementType)
        case st.MapType(), st.MapType():
            return source.keyType == target.keyType and _same(source.valueType, target.valueType)
    return source == target
