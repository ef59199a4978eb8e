"""The `tugline` command: one module per command, and the only place that wires everything together."""
