"""Runs the maintenance tasks, which keep a log small and fast and apply retention. Readers and writers do not notice
them.

    from spark_log.maintenance import run_tasks

    for report in run_tasks("/data/log", ["retention", "merge"], topics=["flights"]):
        print(report)

`spark_log.maintenance.task_list.TASKS` has the tasks, in the order in which they run. The Coordinator runs them on its
own schedule, `spark-log maintenance` and `jobs/maintenance.py` on request. Compact large topics on Spark:

    for report in compact_on_spark(spark, "/data/log", ["planes"]):
        print(report)

The names are imported on first use: every client imports modules of this package, and needs none of the tasks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_log.maintenance.compaction.spark_compaction import compact_on_spark
    from spark_log.maintenance.context import MaintenanceContext
    from spark_log.maintenance.report import Amount, Report
    from spark_log.maintenance.task_list import TASKS, Task, run_tasks

_HOME = {
    "TASKS": "spark_log.maintenance.task_list",
    "Amount": "spark_log.maintenance.report",
    "MaintenanceContext": "spark_log.maintenance.context",
    "Report": "spark_log.maintenance.report",
    "Task": "spark_log.maintenance.task_list",
    "compact_on_spark": "spark_log.maintenance.compaction.spark_compaction",
    "run_tasks": "spark_log.maintenance.task_list",
}

__all__ = ["TASKS", "Amount", "MaintenanceContext", "Report", "Task", "compact_on_spark", "run_tasks"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
