"""Fixtures of the tests of Iceberg tables in Spark."""

import pytest

from tests.support.iceberg import IcebergSpark


@pytest.fixture(scope="session")
def spark41(tmp_path_factory):
    """One Spark for all tests: it takes seconds to start."""
    spark = IcebergSpark(tmp_path_factory.getbasetemp())
    yield spark
    spark.close()
