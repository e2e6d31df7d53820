"""Tracks the memory that one request holds."""

from collections.abc import Callable

from spark_log.gateway.limits.memory_budget import UNCOUNTED_BYTES, MemoryBudget


class ResponseTooLargeError(ConnectionAbortedError):
    """A response would exceed response.max.bytes. The connection is closed."""


class RequestMemory:
    """The holds of one request in each budget, until its response is written or its client has disconnected."""

    def __init__(
        self, frames: MemoryBudget, records: MemoryBudget, responses: MemoryBudget, response_bytes_max: int,
        abort: Callable[[], None], client: str,
    ) -> None:  # fmt: skip
        """`abort` closes the connection at once. `client` is `Client.key`."""
        self.frame, self.records = frames.hold(abort, client), records.hold(abort, client)
        self.response = responses.hold(abort, client)
        self.response_bytes = 0
        """The estimated size of the response while it grows."""
        self.is_large = False
        """Whether the request has so many elements that work on each of them is done in a thread."""
        self._response_bytes_max = response_bytes_max
        self._threads = 0
        self._ended = False

    async def grow_response(self, size: int) -> None:
        """Hold `size` bytes more for the response. Raises ResponseTooLargeError above response.max.bytes."""
        await self.response.more(self._missing(size))
        self.response_bytes += size

    def grow_response_at_once(self, size: int) -> bool:
        """Hold `size` bytes more, like `grow_response`, and return True if there is room now. Otherwise return False
        and change nothing.
        """
        has_grown = self.response.more_at_once(self._missing(size))
        self.response_bytes += size if has_grown else 0
        return has_grown

    def _missing(self, size: int) -> int:
        """Return how many bytes the response has to take from the budget to grow by `size`. A small one takes none."""
        total = self.response_bytes + size
        if total > self._response_bytes_max:
            raise ResponseTooLargeError(f"a response of more than {self._response_bytes_max} bytes")
        return 0 if total <= UNCOUNTED_BYTES else total - self.response.bytes

    def begin_thread(self) -> None:
        """Record that a thread works for the request. The thread may use the memory after a cancellation."""
        self._threads += 1

    def end_thread(self) -> None:
        self._threads -= 1
        self._give_back()

    def close(self) -> None:
        """Give all memory back as soon as no thread works for the request."""
        self._ended = True
        self._give_back()

    def _give_back(self) -> None:
        if self._ended and not self._threads:
            for hold in (self.frame, self.records, self.response):
                hold.close()
