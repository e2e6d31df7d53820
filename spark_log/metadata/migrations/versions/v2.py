"""Adds beats of the coordinator and the time of an accepted promotion. Rewritings of a partition are counted, so that
readers forget the records that they have kept of old segments; classic members have a rebalance timeout; producer ids
an owner.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "v2"
down_revision = "v1"


def upgrade() -> None:
    """Add the columns."""
    add("cluster", "beat", sa.BigInteger(), "number of the coordinator's last beat (PostgreSQL)", default="0")
    add("cluster", "beat_ms", sa.BigInteger(), "store clock; time of that beat; NULL: there has been none")
    comment = "whether the server waited for a synchronous standby at that beat; NULL: there has been none"
    add("cluster", "synchronous", sa.Boolean(), comment)
    add(
        "cluster",
        "promoted_ms",
        sa.BigInteger(),
        "store clock; when the coordinator accepted the promotion of a standby",
    )
    comment = (
        "grows when segments are replaced by a file: what a reader has kept of them may be records that were erased"
    )
    add("partition", "rewrites", sa.BigInteger(), comment, default="0")
    add("producer", "owner", sa.Text(), "principal that got the id from a gateway with ACLs; NULL: another producer")
    comment = "of a classic member: it must join again this time after a new assignment; 0: no limit"
    add("group_member", "rebalance_timeout_ms", sa.Integer(), comment, default="0")
    add("group_member", "rejoin_by_ms", sa.BigInteger(), "store clock; NULL: it need not join again")


def add(table: str, name: str, kind: "sa.types.TypeEngine[Any]", comment: str, default: str | None = None) -> None:
    """Add a column, which is NULL if it has no default."""
    server_default = None if default is None else sa.text(default)
    column = sa.Column(name, kind, nullable=default is None, server_default=server_default, comment=comment)
    op.add_column(table, column)
