"""Runs spark_log.spark.jobs.window: see `spark-submit window.py --help`. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.window import main

if __name__ == "__main__":
    sys.exit(main())
