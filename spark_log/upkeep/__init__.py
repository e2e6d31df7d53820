"""Upkeep: what keeps a log small, fast and as long as it should be, without a reader or a writer noticing.

    from spark_log.upkeep import upkeep

    for report in upkeep("/data/log", ["retention", "merge"], topics=["flights"]):
        print(report)

The tasks, in the order in which they run: see `spark_log.upkeep.tasks.TASKS`. The Coordinator runs them on its own
schedule, `spark-log upkeep` and `jobs/upkeep.py` on request. Large compacted topics are for Spark:

    for report in compact_on_spark(spark, "/data/log", ["planes"]):
        print(report)
"""

from spark_log.upkeep.compact_on_spark import compact_on_spark
from spark_log.upkeep.report import Amount, Report
from spark_log.upkeep.tasks import TASKS, Task, upkeep
from spark_log.upkeep.work import Work

__all__ = ["TASKS", "Amount", "Report", "Task", "Work", "compact_on_spark", "upkeep"]
