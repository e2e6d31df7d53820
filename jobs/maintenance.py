"""Runs spark_log.spark.jobs.maintenance: see `spark-submit maintenance.py --help`. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.maintenance import main

if __name__ == "__main__":
    sys.exit(main())
