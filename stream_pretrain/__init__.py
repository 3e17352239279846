"""Train LitGPT models from streamed MDS shards, and resume exactly after any kill.

The input is a directory or bucket of MDS shards and a configuration; the output is a run directory
with checkpoints, metrics and the configuration that was used.

cli -> audit -> train | export -> checkpoint -> data | model | optim -> runtime | storage | observe
-> plan -> config -> schema -> units -> errors. Imports point to the right only.
"""
