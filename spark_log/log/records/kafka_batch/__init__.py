"""Decodes Kafka's record batches of format version 2 ("magic 2") to Arrow, and encodes them from Arrow.

Layout: https://kafka.apache.org/documentation/#recordbatch. Pure: bytes in, Arrow out, and back.

    header        the 61 bytes before the records
    varint        zigzag varints, one at a time or many at once
    compression   the four codecs, with a limit of the decompressed size
    decode        batches to tables of RECORD_SCHEMA, many batches together
    encode        records to one batch
    few_records   decoding and encoding of batches with few records
"""
