"""The text of metrics is what prometheus_client would write."""

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from spark_log.facts.metrics.exposition import Gauges, exposition

HOSTILE = ("", 'a"b', "back\\slash", "line\nbreak", "%s {x} \\n", "ü€", "<script>")
NUMBERS = (2**53, True, 0.1, 1e300, -1, 0)


class Collected(Collector):
    def collect(self):
        help_text = 'Help with \\ and\nlines and "quotes"'
        yield Gauges("g", help_text, ("group", "topic"), [((a, b), 1) for a in HOSTILE for b in HOSTILE])
        yield Gauges("numbers", "x", ("n",), [((str(n),), n) for n in NUMBERS])
        yield Gauges("none", "x", ("n",), ())
        yield CounterMetricFamily("c", "A counter.", 3)


def parsed(text):
    return {
        metric.name: (metric.type, metric.documentation, [tuple(sample[:3]) for sample in metric.samples])
        for metric in text_string_to_metric_families(text.decode())
    }


def test_text_has_the_same_metrics_as_that_of_the_library():
    registry = CollectorRegistry()
    registry.register(Collected())
    ours = parsed(exposition(registry))
    assert ours == parsed(generate_latest(registry))
    assert len(ours["g"][2]) == len(HOSTILE) ** 2
