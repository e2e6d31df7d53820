import pytest
import sqlalchemy as sa

from spark_log.metadata.address import Address
from spark_log.metadata.compiled_statements import COMPILED_STATEMENTS
from spark_log.metadata.connections.engine import create_engine
from spark_log.metadata.connections.schema_fence import SchemaFence


@pytest.fixture
def engines(tmp_path):
    """Two engines, each of its own SQLite file."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    addresses = [Address.parse(str(tmp_path / name)) for name in ("a", "b")]
    fences = [SchemaFence(address) for address in addresses]
    engines = [create_engine(each, fence, create=True) for each, fence in zip(addresses, fences, strict=True)]
    with fences[0].lifted(), fences[1].lifted():  # the files have no tables
        yield engines
    for engine in engines:
        engine.dispose()


def test_second_engine_does_not_compile_the_statement_again(engines):
    statement = sa.select(sa.literal("compiled once").label("value"))
    found = []
    for engine in engines:
        with engine.connect() as connection:
            assert connection.scalar(statement) == "compiled once"
        found.append(len(COMPILED_STATEMENTS))
    assert found[0] == found[1]
