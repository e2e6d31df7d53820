import pytest
import sqlalchemy as sa

from spark_log.metadata.address import Address
from spark_log.metadata.compiled_statements import COMPILED_STATEMENTS
from spark_log.metadata.connections.engine import create_engine


@pytest.fixture
def engines(tmp_path):
    """Two engines, each of its own SQLite file."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    engines = [create_engine(Address.parse(str(tmp_path / name)), create=True) for name in ("a", "b")]
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
