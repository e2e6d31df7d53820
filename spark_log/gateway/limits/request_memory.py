"""The memory that one request holds."""

from collections.abc import Callable

from spark_log.gateway.limits.memory_budget import UNCOUNTED_BYTES, MemoryBudget


class ResponseTooLargeError(ConnectionAbortedError):
    """A response would pass response.max.bytes; its connection is closed."""


class RequestMemory:
    """The part of one request in each budget, until its response is written or its client has gone."""

    def __init__(
        self, frames: MemoryBudget, records: MemoryBudget, responses: MemoryBudget, response_bytes_max: int,
        abort: Callable[[], None], client: str,
    ) -> None:  # fmt: skip
        """`abort` closes the connection at once. `client`: as `Client.key`."""
        self.frame, self.records = frames.hold(abort, client), records.hold(abort, client)
        self.response = responses.hold(abort, client)
        self.response_bytes = 0
        """As estimated while the response grows."""
        self.is_large = False
        """Whether work on each element of the request takes so long that it is done in a thread."""
        self._response_bytes_max = response_bytes_max
        self._threads = 0
        self._ended = False

    async def grow_response(self, size: int) -> None:
        """Hold so many bytes more for the response. ResponseTooLargeError above response.max.bytes."""
        await self.response.more(self._missing(size))
        self.response_bytes += size

    def grow_response_at_once(self, size: int) -> bool:
        """The same if there is room now; else False, and nothing changes."""
        has_grown = self.response.more_at_once(self._missing(size))
        self.response_bytes += size if has_grown else 0
        return has_grown

    def _missing(self, size: int) -> int:
        """The bytes that the response does not hold yet, when it grows by `size`. A small response holds none."""
        total = self.response_bytes + size
        if total > self._response_bytes_max:
            raise ResponseTooLargeError(f"a response of more than {self._response_bytes_max} bytes")
        return 0 if total <= UNCOUNTED_BYTES else total - self.response.bytes

    def begin_thread(self) -> None:
        """A thread works for the request: it may use the memory after the request was cancelled."""
        self._threads += 1

    def end_thread(self) -> None:
        self._threads -= 1
        self._give_back()

    def close(self) -> None:
        """Hold nothing any more, as soon as no thread works for the request."""
        self._ended = True
        self._give_back()

    def _give_back(self) -> None:
        if self._ended and not self._threads:
            for hold in (self.frame, self.records, self.response):
                hold.close()
