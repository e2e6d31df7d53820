"""`spark-submit compact.py --help`. The code is in spark_log.spark.jobs.compact; PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.compact import main

if __name__ == "__main__":
    sys.exit(main())
