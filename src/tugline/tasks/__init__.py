"""Tasks: Harbor directories, read and checked before anything runs."""

from tugline.tasks.harbor import with_verifier
from tugline.tasks.load import load_tasks, shipped_names
from tugline.tasks.problems import BrokenTasks

__all__ = ["BrokenTasks", "load_tasks", "shipped_names", "with_verifier"]
