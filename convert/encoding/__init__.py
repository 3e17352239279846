"""Turn text into token ids.

A tokenizer's name or files come in; `vocabulary` loads them. `encoder_check` chooses the fastest
encoder that gives the ids of the `tokenizers` library, and the encoders return the ids of a list of
texts. Nothing here reads inputs or packs samples.
"""
