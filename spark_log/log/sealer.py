"""Sealing beside appends: who appends small batches again and again does not wait for a file when a tail is full."""

import logging
import threading
from collections.abc import Callable, Sequence

from spark_log.cluster.topics import Topic
from spark_log.exit_hooks import stop_at_exit

logger = logging.getLogger(__name__)


class Sealer:
    """Runs `seal(topic, partitions)` for the tails that it is told of, a topic at a time, in a daemon thread.

    Thread-safe. The thread starts with the first tail.
    """

    def __init__(self, seal: Callable[[Topic, Sequence[int]], object]) -> None:
        self._seal = seal
        self._changed = threading.Condition()
        self._due: dict[int, tuple[Topic, set[int]]] = {}
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, topic: Topic, partition: int) -> None:
        """The tail is full."""
        with self._changed:
            if self._closed:
                return
            self._due.setdefault(topic.topic_id, (topic, set()))[1].add(partition)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spark-log-sealer", daemon=True)
                self._thread.start()
                stop_at_exit(self)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Seal what is due, for so long at most: what is left is sealed by whoever appends next, or the coordinator."""
        with self._changed:
            self._changed.wait_for(lambda: not self._due and not self._busy, timeout_s)
        for thread in self.request_stop():
            thread.join(timeout_s)

    def request_stop(self) -> list[threading.Thread]:
        """Seal nothing more than what is being sealed."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify_all()
        return [] if self._thread is None else [self._thread]

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._due) or self._closed)
                if self._closed:
                    return
                topic, partitions = self._due.pop(next(iter(self._due)))
                self._busy = True
            try:
                self._seal(topic, sorted(partitions))
            except Exception:  # the next full tail must still find the thread
                logger.exception("%s: tails not sealed, tried again later", topic.name)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
