"""Defines what all tables share: names of constraints, column types, and the folder that writes a table."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table
from sqlalchemy.types import TypeEngine

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

SERIAL: TypeEngine[int] = BigInteger().with_variant(Integer(), "sqlite")
"""Type of generated ids. SQLite generates ids only for INTEGER columns; `sqlite_autoincrement` prevents their reuse."""


def tables_of(owner: str) -> Callable[..., Table]:
    """Return a function that defines tables. Only the folder `spark_log/<owner>` writes them
    (tests/house/test_table_owners.py).
    """

    def table(name: str, *columns: Any, deleted_with: tuple[str, ...] = (), **kwargs: Any) -> Table:
        """Define a table. `deleted_with` has "topic", "log_dir" or both if its rows are deleted together with rows of
        these tables (`metadata/cascade.py`).
        """
        info = {"owner": owner, "deleted_with": deleted_with}
        return Table(name, metadata, *columns, info=info, **kwargs)

    return table


def column(name: str, type_: Any, comment: str, *args: Any, **kwargs: Any) -> Column[Any]:
    """Return a column. It is NOT NULL unless `nullable=True` is given."""
    kwargs.setdefault("nullable", False)
    return Column(name, type_, *args, comment=comment, **kwargs)


def topic_id(**kwargs: Any) -> Column[Any]:
    return column("topic_id", BigInteger, "topic.topic_id", **kwargs)


def partition_number(**kwargs: Any) -> Column[Any]:
    return column("partition", Integer, "number of the partition in its topic, from 0", **kwargs)
