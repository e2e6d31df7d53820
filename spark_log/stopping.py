"""The wish to stop, as a signal handler may utter it."""

import queue
import signal


class Stop:
    """As threading.Event, but `set` may be called by a signal handler, whatever it interrupts.

    `Event.set` takes a lock that is not reentrant: a handler waits for ever where it interrupts a `wait` or another
    handler's `set` at the wrong moment. `SimpleQueue.put` is documented to be reentrant.
    """

    def __init__(self) -> None:
        self._set = False
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._set = True
        self._told.put(None)

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout_s: float) -> bool:
        """Whether it is set, after so long at most."""
        if not self._set:
            try:
                self._told.get(timeout=timeout_s)
            except queue.Empty:
                return self._set
            self._told.put(None)  # others may wait too
        return True

    def on_signals(self) -> "Stop":
        """Set by SIGTERM and SIGINT from now on. For the main thread; returns itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.set())
        return self
