"""Turn raw text into MDS shards.

inputs -> parts -> readers (documents) -> encode -> pack -> shards -> receipts -> publish (the card
last).
`build` is the order of the work, `work` one task of it, `engines` run tasks; `staging` makes a
stopped job go on; `verify` and `overview` look at what was made.
"""
