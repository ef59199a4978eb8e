"""From turns to training rows, and the proof that the rows are what was sampled. Pure."""
