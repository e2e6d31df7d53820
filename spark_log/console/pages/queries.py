"""Shows Spark queries that report to the cluster by SparkLogListener (pages `/queries` and `/queries/{query_id}`)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from spark_log.console.charts import Chart, chart
from spark_log.console.listing import Listing, listing
from spark_log.console.routes import Call, NotFound, View
from spark_log.facts.metrics.history import DAY_MS, Kind, QueryReport, read_queries

DAYS = 7

CHARTS = {
    "lag": ("records", {"lag": "lag"}),
    "rates": ("records/s", {"input_rate": "input", "processed_rate": "processed"}),
    "batches": ("s", {"batch_s": "duration of a batch"}),
    "state": ("rows", {"state_rows": "state"}),
}
"""The charts of a query, each with its unit and its lines."""


@dataclass(frozen=True)
class Queries:
    """The queries of the last DAYS days, by their last reports."""

    days: int
    listing: Listing[QueryReport]


@dataclass(frozen=True)
class Query:
    report: QueryReport
    charts: Sequence[str]


_COLUMNS = tuple(field.name for field in fields(QueryReport))


def _reports(call: Call) -> list[QueryReport]:
    """Return the last reports.

    Only users who see all topics get them, because a report does not name the topics that its query reads.
    """
    if not call.role.sees_all:
        return []
    return read_queries(call.cluster, from_ms=call.cluster.store.now().wall_ms - DAYS * DAY_MS)


def _facts(call: Call) -> Queries:
    queries = listing(
        _reports(call),
        call.query,
        columns=_COLUMNS,
        sort="-time_ms",
        name=lambda report: f"{report.query_name or ''} {report.query_id}",
    )
    return Queries(DAYS, queries)


def _report(call: Call) -> QueryReport:
    query_id = call.path["query_id"]
    for report in _reports(call):
        if report.query_id == query_id:
            return report
    raise NotFound(f"no query {query_id!r} has reported in the last {DAYS} days")


def _query(call: Call) -> Query:
    return Query(_report(call), tuple(CHARTS))


def _chart(call: Call) -> Chart:
    name = call.path["chart"]
    if name not in CHARTS:
        raise NotFound(f"there is no chart {name!r}")
    report = _report(call)
    unit, lines = CHARTS[name]
    title = f"{name.title()} of query {report.query_name or report.query_id}"
    return chart(call, title, unit, Kind.QUERY, report.query_id, lines)


VIEWS = (
    View("/queries", "queries.html", _facts, title="Queries"),
    View("/queries/{query_id}", "query.html", _query),
    View("/queries/{query_id}/{chart}", "chart.html", _chart),
)
