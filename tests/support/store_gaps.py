"""Runs a disturbance right before the k-th access of a call to the metadata store.

A call that takes several snapshots has gaps between them; the disturbance changes the log in one of these gaps.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_log.metadata.store import Store


class StoreGaps:
    """Counts the accesses of one thread to any store; `disturb_before` makes the k-th one (from 1) wait for an action.

    An access is a snapshot or a transaction: `Store.read` is a snapshot too.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.accesses = 0
        self._thread = threading.get_ident()
        self._counting = False
        self._before = 0
        self._action: Callable[[], object] | None = None
        snapshot, transact = Store.snapshot, Store.transact

        @contextmanager
        def counted_snapshot(store: Store) -> Iterator[Any]:
            self._count()
            with snapshot(store) as connection:
                yield connection

        def counted_transact(store: Store, *arguments: Any, **options: Any) -> Any:
            self._count()
            return transact(store, *arguments, **options)

        patch.setattr(Store, "snapshot", counted_snapshot)
        patch.setattr(Store, "transact", counted_transact)

    @contextmanager
    def disturb_before(self, number: int, action: Callable[[], object] | None) -> Iterator[None]:
        """Count the accesses inside; calls `action` before access `number`, if there are that many."""
        self.accesses, self._before, self._action, self._counting = 0, number, action, True
        try:
            yield
        finally:
            self._counting = False

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """The accesses inside do not count."""
        counting, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = counting

    def _count(self) -> None:
        if not self._counting or threading.get_ident() != self._thread:
            return
        self.accesses += 1
        if self.accesses == self._before and self._action is not None:
            self._counting = False  # the accesses of the action do not count
            self._action()
            self._counting = True
