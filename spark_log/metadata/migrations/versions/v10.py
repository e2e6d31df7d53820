"""A topic counts its moves between stores, so that the newest of several copies is known after a restore."""

import sqlalchemy as sa
from alembic import op

from spark_log.metadata import tables as t

revision = "v10"
down_revision = "v9"
additive = True


def upgrade() -> None:
    comment = t.topic.c.move_epoch.comment
    column: sa.Column[int] = sa.Column(
        "move_epoch", sa.BigInteger(), nullable=False, server_default=sa.text("0"), comment=comment
    )
    op.add_column("topic", column)
