"""Turn a checkpoint of a run into something that others can use.

`trained_model` reads the checkpoint. `litgpt` and `huggingface` write a directory, which `parity`
compares with the network that it came from before it appears; `generate` samples text.
"""
