"""Cluster settings are stored with the cluster."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column(
        "cluster",
        sa.Column(
            "settings",
            sa.Text(),
            nullable=False,
            server_default="{}",
            comment="cluster settings that differ from the defaults: JSON, dotted name to text",
        ),
    )
