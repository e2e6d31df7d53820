"""Runs spark_log.spark.jobs.erase: see `spark-submit erase.py --help`. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.erase import main

if __name__ == "__main__":
    sys.exit(main())
