"""Charts of the history: the JSON that static/charts.js draws, and the same numbers as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_log.console.routes import Call
from spark_log.facts.metrics.history import HOUR_MS, Kind, read_series

STEPS = 144
"""Steps of a chart: 10 minutes of a day."""

_HOURS_MAX = 30 * 24


@dataclass(frozen=True)
class Line:
    """`values`: one for each time; None: nothing was measured."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """`times`: the start of each step, milliseconds since 1970. Empty lists: nothing was measured yet."""

    title: str
    unit: str
    hours: int
    times: Sequence[int]
    series: Sequence[Line]


def chart(call: Call, title: str, unit: str, kind: Kind, name: str, lines: Mapping[str, str]) -> Chart:
    """The last 24 hours, or those of query parameter `hours`. `lines`: title of each field of the series."""
    text = call.query.get("hours", "24")
    hours = min(_HOURS_MAX, max(1, int(text))) if text.isascii() and text.isdecimal() and len(text) < 9 else 24
    now_ms = call.cluster.store.now().wall_ms
    step_ms = max(60_000, hours * HOUR_MS // STEPS)
    found = read_series(call.cluster, kind, name, from_ms=now_ms - hours * HOUR_MS, to_ms=now_ms, step_ms=step_ms)
    series = [Line(title, found.values[field]) for field, title in lines.items()]
    measured = any(value is not None for line in series for value in line.values)
    return Chart(title, unit, hours, found.times_ms if measured else (), series if measured else ())
