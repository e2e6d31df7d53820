"""The times of the functions that a benchmark looks into."""

import time
from collections.abc import Callable
from typing import Any


def timed(owner: Any, name: str, times_us: dict[str, list[float]]) -> Callable[..., Any]:
    """Return `owner.name` such that each call adds its time, under the last part of the owner's name."""
    called = getattr(owner, name)
    times = times_us[f"{owner.__name__.rpartition('.')[2]}.{name}"]

    def timed(*arguments: Any, **keywords: Any) -> Any:
        began = time.perf_counter()
        try:
            return called(*arguments, **keywords)
        finally:
            times.append((time.perf_counter() - began) * 1e6)

    return timed
