"""The conversation tree of a session: where a call attaches, what the harness edited, what a retry is. Pure."""
