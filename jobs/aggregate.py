"""`spark-submit aggregate.py --help`. The code is in spark_log.spark.jobs.aggregate; PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.aggregate import main

if __name__ == "__main__":
    sys.exit(main())
