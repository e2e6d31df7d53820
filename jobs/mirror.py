"""`spark-submit mirror.py --help`. The code is in spark_log.spark.jobs.mirror; PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.spark.jobs.mirror import main

if __name__ == "__main__":
    sys.exit(main())
