"""Files that were replaced soon after their records were appended are kept for a shorter time."""

import sqlalchemy as sa
from alembic import op

revision = "v5"
down_revision = "v4"


def upgrade() -> None:
    """Files that were retired before keep their time."""
    comment = "replaced soon after its records were appended: deleted file.delete.delay.fresh.ms later"
    column: sa.Column[bool] = sa.Column(
        "fresh", sa.Boolean(), nullable=False, server_default=sa.false(), comment=comment
    )
    op.add_column("retired_file", column)
