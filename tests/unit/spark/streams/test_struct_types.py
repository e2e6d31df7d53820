"""The columns of a struct and the fields of a schema find each other by name."""

import pytest
from pyspark.sql.types import StructType

from spark_log.errors import InvalidOptionError
from spark_log.spark.streams.formats.struct_types import fitted


def test_names_have_no_case_unless_the_fields_of_the_schema_differ_only_in_it() -> None:
    given = StructType().add("ID", "short")
    target = StructType().add("n", "long").add("id", "integer")
    assert fitted(given, target, "value") == StructType().add("id", "integer")
    both = StructType().add("id", "integer").add("ID", "long")
    assert fitted(given, both, "value") == StructType().add("ID", "long")
    with pytest.raises(InvalidOptionError, match=r"value\.Id: the schema has no such field, only id, ID"):
        fitted(StructType().add("Id", "short"), both, "value")
