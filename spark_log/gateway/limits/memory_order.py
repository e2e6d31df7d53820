"""The order in which waiting requests get memory."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

_SMALLEST_FIRST_S = 1.0
"""Of clients that hold equally much, the smallest request is first until one of them has waited for so long."""


@dataclass(frozen=True)
class Waiter:
    """A request that waits for `size` bytes since `since_s`. Each has another `number`, in the order of the calls."""

    client: str
    size: int
    since_s: float
    number: int

    @property
    def by_size(self) -> tuple[int, int]:
        return self.size, self.number


@dataclass(frozen=True)
class Front:
    """The smallest and the oldest of the requests of one client that wait."""

    smallest: Waiter
    oldest: Waiter


def first_of(fronts: Mapping[str, Front], held: Mapping[str, int], now_s: float) -> Waiter:
    """The request that gets memory next: of the client that holds least (`held`, by client).

    Of clients that hold equally much, the smallest request is first, until one of them has waited for a second, then
    the oldest.
    """
    least = min(held.get(client, 0) for client in fronts)
    equals = [front for client, front in fronts.items() if held.get(client, 0) == least]
    oldest = min((front.oldest for front in equals), key=attrgetter("number"))
    if now_s - oldest.since_s >= _SMALLEST_FIRST_S:
        return oldest
    return min((front.smallest for front in equals), key=attrgetter("by_size"))


class WaitersOfClient:
    """The requests of one client that wait. It has at least one."""

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
    def front(self) -> Front:
        return Front(self._by_size[0], next(iter(self._by_age.values())))
