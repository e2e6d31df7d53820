"""Runs spark_log.spark.jobs.transform, which needs no Spark: see `python transform.py --help`."""

import sys

from spark_log.spark.jobs.transform import main

if __name__ == "__main__":
    sys.exit(main())
