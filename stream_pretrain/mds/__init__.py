"""The MDS format, as the trainer and the converter share it.

The text of an `index.json` goes in and checked shards come out (index); packed bytes go in and raw
bytes come out (decompress); the bytes of a sample go in and its ids come out (row_format).
"""
