"""Train LitGPT models from streamed MDS shards, with a resume that is exact and can be proven.

cli -> audit -> train | export -> checkpoint -> data | model | optim -> runtime | storage | observe
-> plan -> config -> schema -> units -> errors. Imports point to the right only.
"""
