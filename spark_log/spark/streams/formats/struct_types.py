"""Converts structs of a DataFrame to those of a schema. Fields match by name without regard to case, and have the same
or a narrower type.
"""

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from spark_log.errors import InvalidOptionError

_INTEGERS: tuple[type[st.DataType], ...] = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
"""Integer types. The values of each type fit into the types that follow."""
_DIGITS = dict(zip(_INTEGERS, (3, 5, 10, 19), strict=True))


def fitted(source: st.DataType, target: st.DataType, path: str) -> st.DataType:
    """Return `target` without the fields that `source` lacks. Raises InvalidOptionError for a field that `target`
    lacks, or whose type does not fit.
    """
    match source, target:
        case st.StructType(), st.StructType():
            return st.StructType(_fields(source, target, path))
        case st.ArrayType(), st.ArrayType():
            return st.ArrayType(fitted(source.elementType, target.elementType, f"{path}[]"))
        case st.MapType(), st.MapType():
            keys = fitted(source.keyType, target.keyType, f"{path}{{}} (key)")
            return st.MapType(keys, fitted(source.valueType, target.valueType, f"{path}{{}}"))
    if not _fits(source, target):
        raise InvalidOptionError(
            f"column {path}: {source.simpleString()} does not fit {target.simpleString()}, cast the column"
        )
    return target


def _fields(source: st.StructType, target: st.StructType, path: str) -> list[st.StructField]:
    key = _key_of_names(target)
    by_name: dict[str, st.StructField] = {}
    for field in source.fields:
        if (other := by_name.setdefault(key(field.name), field)) is not field:
            raise InvalidOptionError(f"column {path}.{field.name}: its name is that of {other.name} without case")
    names = set(map(key, target.names))
    for name, field in by_name.items():
        if name not in names:
            raise InvalidOptionError(
                f"column {path}.{field.name}: the schema has no such field, only {', '.join(target.names)}"
            )
    return [
        st.StructField(field.name, fitted(by_name[key(field.name)].dataType, field.dataType, f"{path}.{field.name}"))
        for field in target.fields
        if key(field.name) in by_name
    ]


def _key_of_names(target: st.StructType) -> Callable[[str], str]:
    """Return the function that maps a name to its key for comparison. Case does not count, unless names of `target`
    differ only in it, which Protobuf allows.
    """
    return str.lower if len(set(map(str.lower, target.names))) == len(target.names) else str


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
    """Return the column as type `target`. Missing fields are null, and fields that `target` lacks are left out."""
    if _same(source, target):
        return column
    match source, target:
        case st.StructType(), st.StructType():
            key = _key_of_names(target)
            by_name = {key(field.name): field for field in source.fields}
            fields = [
                converted(column.getField(by_name[name].name), by_name[name].dataType, field.dataType).alias(field.name)
                if (name := key(field.name)) in by_name
                else sf.lit(None).cast(field.dataType).alias(field.name)
                for field in target.fields
            ]
            return sf.when(column.isNotNull(), sf.struct(*fields))
        case st.ArrayType(), st.ArrayType():
            return sf.transform(column, lambda item: converted(item, source.elementType, target.elementType))
        case st.MapType(), st.MapType():
            if source.keyType != target.keyType:
                column = sf.transform_keys(column, lambda key, _: key.cast(target.keyType))
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
