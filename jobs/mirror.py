"""spark-submit jobs/mirror.py --help: the code is spark_log.jobs.mirror. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.jobs.mirror import main

if __name__ == "__main__":
    sys.exit(main())
