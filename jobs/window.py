"""spark-submit jobs/window.py --help: the code is spark_log.jobs.window. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.jobs.window import main

if __name__ == "__main__":
    sys.exit(main())
