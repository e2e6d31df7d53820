"""The curves of the scale benchmark as one picture: a chart for each axis and store."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot


def plot(costs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """CPU milliseconds over size, both logarithmic; the format follows from the name: .svg or .png."""
    axes = list(dict.fromkeys(cost["axis"] for cost in costs))
    stores = list(dict.fromkeys(cost["store"] for cost in costs))
    figure, charts = pyplot.subplots(
        len(stores), len(axes), figsize=(4 * len(axes), 3.4 * len(stores) + 1), layout="constrained", squeeze=False
    )
    curves: dict[str, Any] = {}
    for row, store in enumerate(stores):
        for column, axis in enumerate(axes):
            chart = charts[row][column]
            found = [cost for cost in costs if (cost["store"], cost["axis"]) == (store, axis)]
            for what in dict.fromkeys(cost["what"] for cost in costs):
                points = [(cost["size"], cost["cpu_ms"]) for cost in found if cost["what"] == what]
                if points and not what.startswith("task: "):
                    color = curves[what].get_color() if what in curves else None
                    [line] = chart.plot(*zip(*points, strict=True), marker=".", linewidth=1.2, color=color)
                    curves.setdefault(what, line)
            chart.set_xscale("log")
            chart.set_yscale("log")
            chart.set_title(f"{store}: {axis}", fontsize=10)
            chart.tick_params(labelsize=8)
            chart.set_ylim(0.1, 1e5)
            chart.grid(alpha=0.3)
        charts[row][0].set_ylabel("CPU time of the client, ms", fontsize=8)
    figure.legend(curves.values(), curves.keys(), loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path)
    pyplot.close(figure)
