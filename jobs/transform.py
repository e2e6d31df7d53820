"""`python transform.py --help`. The code is in spark_log.spark.jobs.transform; it needs no Spark."""

import sys

from spark_log.spark.jobs.transform import main

if __name__ == "__main__":
    sys.exit(main())
