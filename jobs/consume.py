"""`spark-submit consume.py --help`. The code is in spark_log.spark.jobs.consume; PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.consume import main

if __name__ == "__main__":
    sys.exit(main())
