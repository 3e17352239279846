"""Read a configuration from YAML files and flags into frozen, checked models.

What goes in are `--config` files and command-line flags; what comes out is a `LoadedConfig`, or a
`ConfigError` that lists every fault. `types` defines how values are written, `checks` finds keys
that contradict one another, `sections` defines every key, `load_config` reads files and flags, and
`reference` writes help text, README and JSON Schema.
"""
