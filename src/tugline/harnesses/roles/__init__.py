"""What the requests of known harnesses say of themselves: one rule per harness, each sure of its own only.

Rules look at headers and at short marks in the texts. A harness that changes both is still placed by the form of its
requests; see `tugline.forest.roles`.
"""

from __future__ import annotations

from tugline.core.contracts import RoleRule
from tugline.harnesses.roles.claude_code import claude_code
from tugline.harnesses.roles.codex import codex
from tugline.harnesses.roles.gemini_cli import gemini_cli
from tugline.harnesses.roles.opencode import opencode
from tugline.harnesses.roles.openhands import openhands
from tugline.harnesses.roles.pi import pi
from tugline.harnesses.roles.qwen_code import qwen_code
from tugline.harnesses.roles.terminus import terminus

RULES: tuple[RoleRule, ...] = (claude_code, codex, opencode, gemini_cli, qwen_code, pi, openhands, terminus)
"""Asked in this order; the first that knows a request decides."""
