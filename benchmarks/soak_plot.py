"""The series of a soak as one picture: a small chart for each group of series."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

from benchmarks.soak_samples import Samples

GROUPS = (
    ("memory: ", "memory (PSS), MB"),
    ("files: ", "files"),
    ("bytes: ", "bytes of the log dir, MB"),
    ("store: ", "metadata store, MB"),
    ("rows: ", "rows of the metadata store"),
    ("latency: ", "latency, ms"),
)
_LINES_MAX = 8


def plot(samples: Samples, title: str, path: Path) -> None:
    """One chart for each of GROUPS, over the minutes of the run. The format follows from the name: .svg or .png."""
    figure, axes = pyplot.subplots(2, 3, figsize=(14, 7.5), layout="constrained")
    for chart, (prefix, label) in zip(axes.flat, GROUPS, strict=True):
        names = [name for name in samples.values if name.startswith(prefix)]
        largest = sorted(names, key=lambda name: -max(samples.by_minute(name).values()))[:_LINES_MAX]
        for name in largest:
            points = samples.by_minute(name)
            chart.plot(list(points), list(points.values()), label=name.removeprefix(prefix), linewidth=1.2)
        chart.set_title(label, fontsize=10)
        chart.set_xlabel("minute", fontsize=8)
        chart.set_ylim(bottom=0)
        chart.tick_params(labelsize=8)
        if len(largest) > 1:
            chart.legend(fontsize=6)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path)
    pyplot.close(figure)
