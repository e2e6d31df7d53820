"""Makes charts of the history. static/charts.js draws the JSON, and a table shows the same numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_log.console.routes import Call
from spark_log.facts.metrics.history import HOUR_MS, Kind, read_series

STEPS = 144
"""The number of steps of a chart. In a chart of a day, a step is 10 minutes."""

_HOURS_MAX = 30 * 24


@dataclass(frozen=True)
class Line:
    """One line of a chart. `values` has one number for each time, or None where nothing was measured."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """A chart. `times` has the start of each step in milliseconds since 1970. `times` and `series` are empty if nothing
    was measured yet.
    """

    title: str
    unit: str
    hours: int
    times: Sequence[int]
    series: Sequence[Line]


def chart(call: Call, title: str, unit: str, kind: Kind, name: str, lines: Mapping[str, str]) -> Chart:
    """Return the chart of the last 24 hours, or of the number of hours in query parameter `hours`.

    `lines` has the title of each field of the series.
    """
    text = call.query.get("hours", "24")
    hours = min(_HOURS_MAX, max(1, int(text))) if text.isascii() and text.isdecimal() and len(text) < 9 else 24
    now_ms = call.cluster.store.now().wall_ms
    step_ms = max(60_000, hours * HOUR_MS // STEPS)
    found = read_series(call.cluster, kind, name, from_ms=now_ms - hours * HOUR_MS, to_ms=now_ms, step_ms=step_ms)
    series = [Line(title, found.values[field]) for field, title in lines.items()]
    measured = any(value is not None for line in series for value in line.values)
    return Chart(title, unit, hours, found.times_ms if measured else (), series if measured else ())
