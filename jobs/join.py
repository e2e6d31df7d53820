"""Runs spark_log.spark.jobs.join: see `spark-submit join.py --help`. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.join import main

if __name__ == "__main__":
    sys.exit(main())
