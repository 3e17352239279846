"""Save and restore training state, and let only one process own a run directory.

`save.Checkpoints` is what the training loop calls. A save takes the model, the optimizers and a
`TrainState`: `snapshot` copies them to host memory, and `publish` writes them from all ranks with
`write_files` and `dcp`, writes the receipt last and removes old checkpoints. A restore goes the
other way: `search` verifies the newest checkpoint and fetches it to the local disk, and `restore`
fills model, optimizers and random generators. Both use `rank_group`, so that an error on one rank
is raised on all. `read_model` reads a checkpoint without a model, for export and audits. `lease` is
independent of all this: it makes sure that a run directory has one owner.
"""
