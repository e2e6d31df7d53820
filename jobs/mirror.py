"""Runs spark_log.spark.jobs.mirror: see `spark-submit mirror.py --help`. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.mirror import main

if __name__ == "__main__":
    sys.exit(main())
