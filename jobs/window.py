"""`spark-submit window.py --help`. The code is in spark_log.spark.jobs.window; PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.window import main

if __name__ == "__main__":
    sys.exit(main())
