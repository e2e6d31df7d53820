"""Runs spark_log.spark.jobs.produce: see `spark-submit produce.py --help`. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.produce import main

if __name__ == "__main__":
    sys.exit(main())
