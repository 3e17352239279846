"""The update rule of a run.

`build_optimizer` takes a model and the `optimizer` section and returns a `torch.optim.Optimizer`;
`registry` lists the optimizers, `param_groups` decides what decays, and `schedule` returns the
learning rate of a step.
"""
