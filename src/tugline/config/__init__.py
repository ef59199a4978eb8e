"""The whole configuration as frozen types, and how it is loaded: defaults < TOML file < TUGLINE_* < flags."""
