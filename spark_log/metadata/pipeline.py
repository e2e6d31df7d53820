"""Sends several statements to PostgreSQL in one message, with psycopg's pipeline."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any


@contextlib.contextmanager
def pipeline(driver: Any) -> Iterator[None]:
    """Send the statements of the block together on a connection of psycopg. Results are available after the block."""
    with driver.pipeline() as opened:
        opened._exit_gen = partial(_end_with_sync, opened)
        yield


def execute_many(driver: Any, cursor: Any, text: str, parameters: Sequence[Any]) -> None:
    """Execute a statement once for each set of parameters; inside a block of `pipeline`, with its other statements."""
    in_pipeline = driver.pgconn.pipeline_status
    with contextlib.nullcontext() if in_pipeline else pipeline(driver):  # else psycopg opens one that ends with Flush
        cursor.executemany(text, parameters)


def _end_with_sync(opened: Any) -> Iterator[Any]:
    """End a pipeline as psycopg does, but without the Flush message after Sync.

    After a Flush, PostgreSQL does not count idle_in_transaction_session_timeout, so a process that is stopped at that
    moment would keep its locks.
    """
    try:
        opened._enqueue_sync()
        yield from opened._communicate_gen()
    finally:
        yield from opened._fetch_gen(flush=False)
