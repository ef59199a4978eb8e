"""The pilot: a policy of under a million parameters that drives a real, unmodified harness on the task families.

It makes a whole RL loop real on a laptop: it really reads the harness' prompt, really calls its tools, succeeds on
somewhat under half of the held-out tasks, and can learn to succeed on most. A finished model is shipped in
`MODEL_DIR`; the recipe that made it is `python -m tugline.training.pilot train`. docs/design/pilot.md has the
figures.
"""

from __future__ import annotations

from pathlib import Path

MODEL_DIR = Path(__file__).parent / "model"
"""The shipped model: Hugging Face files and tugline.json."""
