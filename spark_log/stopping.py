"""A stop flag that is safe to set from a signal handler."""

import queue
import signal


class Stop:
    """Like threading.Event, but `set` may be called by a signal handler at any point.

    `Event.set` takes a lock that is not reentrant: a handler that interrupts a `wait` or another handler's `set` can
    deadlock. `SimpleQueue.put` is documented to be reentrant.
    """

    def __init__(self) -> None:
        self._set = False
        self._wake_ups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._set = True
        self._wake_ups.put(None)

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout_s: float) -> bool:
        """Whether it is set. Waits for that for at most `timeout_s` seconds."""
        if not self._set:
            try:
                self._wake_ups.get(timeout=timeout_s)
            except queue.Empty:
                return self._set
            self._wake_ups.put(None)  # for other waiting threads
        return True

    def on_signals(self) -> "Stop":
        """Let SIGTERM and SIGINT set it. To be called in the main thread; returns itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.set())
        return self
