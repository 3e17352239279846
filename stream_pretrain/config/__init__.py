"""The configuration, from what a person wrote to frozen values.

`types` (how values are written) -> `checks` (keys that contradict one another) -> `sections` (every
key), read from files and flags by `load`, described by `document`.
"""
