"""A checkpoint -> something others can use: a LitGPT directory (`litgpt`), a Hugging Face directory
(`huggingface`), each compared with the network it came from before it appears (`parity`), or a
piece of text (`generate`).
"""
