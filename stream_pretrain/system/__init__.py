"""What every part asks of the operating system: locks, durable directories, where caches lie.

Paths go in; locks, synced directories and paths come out. Nothing here knows of datasets or runs.
"""
