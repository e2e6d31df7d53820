"""Each end of a transaction raises the producer's epoch (KIP-890), so transactions need no number."""

from alembic import op

revision = "v3"
down_revision = "v2"


def upgrade() -> None:
    """Open transactions stay open: they may be committed or aborted, and a new producer may fence their producers."""
    op.execute('ALTER TABLE "transaction" RENAME COLUMN bumped_from TO previous_epoch')
    op.execute('ALTER TABLE "transaction" DROP COLUMN number')
    op.execute('ALTER TABLE "transaction" DROP COLUMN numbered')
