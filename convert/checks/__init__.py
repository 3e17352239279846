"""Look at a finished dataset: verify every byte of it, or show what it holds.

The directory or URL of a dataset comes in; a report comes out. Nothing is changed.
"""
