"""Tasks: Harbor directories, read and checked before anything runs."""

from tugline.tasks.load import load_tasks, shipped_names

__all__ = ["load_tasks", "shipped_names"]
