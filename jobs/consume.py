"""Runs spark_log.spark.jobs.consume: see `spark-submit consume.py --help`. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.consume import main

if __name__ == "__main__":
    sys.exit(main())
