"""Training state on disk: state -> tensors -> host copy -> staged files -> receipt -> published;
and back, verified.
"""
