"""Beats of the coordinator and the time of an accepted promotion, in table cluster."""

import sqlalchemy as sa
from alembic import op

revision = "v2"
down_revision = "v1"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("cluster", sa.Column("beat", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("cluster", sa.Column("beat_ms", sa.BigInteger(), nullable=True))
    op.add_column("cluster", sa.Column("synchronous", sa.Boolean(), nullable=True))
    op.add_column("cluster", sa.Column("promoted_ms", sa.BigInteger(), nullable=True))
