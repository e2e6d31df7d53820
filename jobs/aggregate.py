"""Runs spark_log.spark.jobs.aggregate: see `spark-submit aggregate.py --help`. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.aggregate import main

if __name__ == "__main__":
    sys.exit(main())
