"""Decides the order in which waiting requests get memory."""

from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter


@dataclass(frozen=True)
class Waiter:
    """A request that has waited for `size` bytes since `since_s`. Its unique `number` is in the order of the calls."""

    client: str
    size: int
    since_s: float
    number: int

    @property
    def by_size(self) -> tuple[int, int]:
        return self.size, self.number


class WaitersOfClient:
    """The waiting requests of one client, by size and by age. There is at least one while the client waits."""

    def __init__(self) -> None:
        self._by_size: list[Waiter] = []
        self._by_age: OrderedDict[int, Waiter] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._by_size)

    def add(self, waiter: Waiter) -> None:
        insort(self._by_size, waiter, key=attrgetter("by_size"))
        self._by_age[waiter.number] = waiter

    def remove(self, waiter: Waiter) -> None:
        del self._by_size[bisect_left(self._by_size, waiter.by_size, key=attrgetter("by_size"))]
        del self._by_age[waiter.number]

    @property
    def smallest(self) -> Waiter:
        return self._by_size[0]

    @property
    def oldest(self) -> Waiter:
        return next(iter(self._by_age.values()))


class WaitingClients:
    """Keeps clients in the order of their turns. The one that holds least is first; among clients that hold equally
    much, the one that got memory longest ago, then the one that has waited longest. So a client that asks repeatedly
    comes after all others.
    """

    def __init__(self) -> None:
        self._turns: dict[str, tuple[int, int, int, str]] = {}
        self._heap: list[tuple[int, int, int, str]] = []
        """The turns of all clients, and outdated turns, which `first` skips."""

    def put(self, client: str, held: int, last_grant: int, oldest: int) -> None:
        """Add the client, or give it another turn. `last_grant` is the number of the last grant of memory to it, and
        `oldest` is the number of its oldest waiter.
        """
        turn = held, last_grant, oldest, client
        if self._turns.get(client) != turn:
            self._turns[client] = turn
            heappush(self._heap, turn)

    def remove(self, client: str) -> None:
        self._turns.pop(client, None)

    @property
    def first(self) -> str | None:
        while self._heap and self._turns.get(self._heap[0][3]) != self._heap[0]:
            heappop(self._heap)
        return self._heap[0][3] if self._heap else None
