"""`spark-submit window.py --help`. The code is in spark_log.jobs.window; PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.jobs.window import main

if __name__ == "__main__":
    sys.exit(main())
