"""Orders the produce requests that wait for a transaction of their store."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_log.gateway.records.batch_checks import Accepted, Checked, Outcome, SentBatch
from spark_log.log.append.rules import Acks
from spark_log.log.records.kafka_batch.header import claimed_records

_BYTES_TOGETHER_MAX, _RECORDS_TOGETHER_MAX, _BATCHES_TOGETHER_MAX = 64 * 1024 * 1024, 500_000, 500
"""The limits of one transaction, unless a single request has more."""
BATCHES_OF_REQUEST_MAX = _BATCHES_TOGETHER_MAX
"""A produce request with more batches is several requests here, so that those of others come in between."""
_CHECKED_TOGETHER_BYTES = 256 * 1024


@dataclass(frozen=True)
class Request:
    client: str
    connection: str
    batches: Sequence[SentBatch | Checked]
    acks: Acks
    transactional_id: str | None
    done: "asyncio.Future[list[Outcome]]"

    def may_join(self, other: "Request") -> bool:
        """Whether both may be in one transaction of the store."""
        return self.acks == other.acks and (self.transactional_id is None) == (other.transactional_id is None)

    @property
    def bytes(self) -> int:
        return sum(_bytes(batch) for batch in self.batches)

    @property
    def records(self) -> int:
        return sum(_records(batch) for batch in self.batches)


def _bytes(batch: SentBatch | Checked) -> int:
    return len(batch.data) if isinstance(batch, SentBatch) else batch.bytes


def _records(batch: SentBatch | Checked) -> int:
    if isinstance(batch, SentBatch):
        return claimed_records(batch.data)
    return batch.records.table.num_rows if isinstance(batch, Accepted) else 0


class Queue:
    """Orders the waiting requests. A transaction takes one request of each client, then a second one of each, and so
    on. In the next transaction these clients come after all others. The requests of a connection keep their order.
    """

    def __init__(self) -> None:
        self._clients: OrderedDict[str, list[Request]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._clients)

    def put(self, request: Request) -> None:
        self._clients.setdefault(request.client, []).append(request)

    def take(self) -> list[Request]:
        """Remove and return the requests of the next transaction."""
        [first, *_] = next(iter(self._clients.values()))
        turns = {client: _that_may_join(first, requests) for client, requests in self._clients.items()}
        taken = list(_within_limits(_one_of_each(turns)))
        appended = set(map(id, taken))
        for client in dict.fromkeys(request.client for request in taken):
            left = [request for request in self._clients.pop(client) if id(request) not in appended]
            if left:
                self._clients[client] = left
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        """Return the last requests of a `take`, before all others of their clients, whose turn it is then."""
        for request in reversed(requests):
            self._clients.setdefault(request.client, []).insert(0, request)
            self._clients.move_to_end(request.client, last=False)


def _that_may_join(first: Request, requests: Sequence[Request]) -> Iterator[Request]:
    """Yield the requests that may share a transaction with `first` without overtaking others of their connection."""
    overtaken: set[str] = set()
    for request in requests:
        if request.connection in overtaken or not request.may_join(first):
            overtaken.add(request.connection)
        else:
            yield request


def _one_of_each(turns: dict[str, Iterator[Request]]) -> Iterator[Request]:
    while turns:
        for client, requests in list(turns.items()):
            request = next(requests, None)
            if request is None:
                del turns[client]
            else:
                yield request


def _within_limits(requests: Iterator[Request]) -> Iterator[Request]:
    """Yield the first request, and the next ones up to the limits of a transaction."""
    size = records = batches = 0
    for number, request in enumerate(requests):
        size, records, batches = size + request.bytes, records + request.records, batches + len(request.batches)
        too_many = records > _RECORDS_TOGETHER_MAX or batches > _BATCHES_TOGETHER_MAX
        if number and (size > _BYTES_TOGETHER_MAX or too_many):
            return
        yield request


def unchecked_together(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """Yield the requests, in order, in lists. The batches of a list that are not checked yet are checked together."""
    together: list[Request] = []
    size = 0
    for request in requests:
        more = sum(len(batch.data) for batch in request.batches if isinstance(batch, SentBatch))
        if together and size + more > _CHECKED_TOGETHER_BYTES:
            yield together
            together, size = [], 0
        together.append(request)
        size += more
    yield together
