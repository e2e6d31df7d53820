"""`spark-submit compact.py --help`. The code is in spark_log.jobs.compact; PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.jobs.compact import main

if __name__ == "__main__":
    sys.exit(main())
