"""What the requests of known harnesses say of themselves: one rule per harness, each sure of its own only.

Rules look at headers and at short marks in the texts. A harness that changes both is still placed by the form of its
requests; see `tugline.forest.roles`.
"""

from __future__ import annotations

from tugline.core.contracts import RoleRule
from tugline.harnesses.roles import (
    aider,
    claude_code,
    codex,
    gemini_cli,
    opencode,
    openhands,
    pi,
    qwen_code,
    terminus,
)

RULES: tuple[RoleRule, ...] = (
    claude_code.rule,
    codex.rule,
    opencode.rule,
    gemini_cli.rule,
    qwen_code.rule,
    pi.rule,
    openhands.rule,
    terminus.rule,
    aider.rule,
)
"""Asked in this order; the first that knows a request decides."""
