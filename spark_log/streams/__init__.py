"""Stream processing: DataFrame -> DataFrame, and writing what comes out once.

>>> from spark_log.streams import Tumbling, windowed, TopicOutput, write_stream          # doctest: +SKIP
"""
