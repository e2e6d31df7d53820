"""Raises the first error of several topics or tasks at the end, so that a failing one does not stop the others."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from spark_log.errors import NotControllerError, NotCoordinatorError, SparkLogError, redact

logger = logging.getLogger(__name__)


class FirstFailure:
    """Keeps the first error of the blocks that run under `attempt`; raises it when the `with` block ends normally.

    NotCoordinatorError and NotControllerError are raised at once: another process has the lease.
    """

    def __init__(self) -> None:
        self.first: Exception | None = None

    def __enter__(self) -> "FirstFailure":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None and self.first is not None:
            raise self.first

    @contextmanager
    def attempt(self, notes: list[str] | None = None) -> Iterator[None]:
        """Keep the error of the block, and add its message to `notes`."""
        try:
            yield
        except (NotCoordinatorError, NotControllerError):
            raise
        except Exception as error:
            if not isinstance(error, SparkLogError | OSError):  # a bug, or damaged metadata
                logger.exception("unexpected error, the others go on")
            self.keep(error)
            if notes is not None:
                notes.append(redact(str(error)))

    def keep(self, error: Exception | None) -> None:
        self.first = self.first or error
