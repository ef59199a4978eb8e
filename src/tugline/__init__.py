"""Tugline: any agent harness becomes an RL training environment, token for token."""

__version__ = "0.1.0"
