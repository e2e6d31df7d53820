"""Rewritings of a partition are counted, so that readers forget the records that they have kept of old segments."""

import sqlalchemy as sa
from alembic import op

revision = "v2_rewrites"
down_revision = "v1"


def upgrade() -> None:
    comment = (
        "grows when segments are replaced by a file: what a reader has kept of them may be records that were erased"
    )
    rewrites = sa.Column("rewrites", sa.BigInteger(), nullable=False, server_default=sa.text("0"), comment=comment)
    op.add_column("partition", rewrites)
