"""`[edits]` and `[filters]` of the settings as the policy that a gateway keeps to."""

from __future__ import annotations

from tugline.config.types import Settings
from tugline.core.contracts import Edit, EditPolicy, TextFilter

BILLING_HEADER = TextFilter("billing_header", r"\Ax-anthropic-billing-header:[^\n]*\n?", "first_system")
"""What a client writes for its provider's accounts. Its hash changes between requests; no model needs it."""
TOTAL_TOKENS = TextFilter("total_tokens", r"(?<!\s)\s*<total_tokens>[^<]*</total_tokens>")
"""How much of its window an agent has left. A model may well read it: off by default.
Blanks are tried from their first one on only: a long run of them would cost the square of its length."""


def edit_policy(settings: Settings) -> EditPolicy:
    """What becomes of edited turns."""
    asked = settings.edits

    def choice(value: str) -> Edit:
        return "honour" if value == "honour" else "retain"

    return EditPolicy(
        ws_trim=choice(asked.ws_trim),
        reasoning_changed=choice(asked.reasoning_changed),
        args_lossy_known=choice(asked.args_lossy_known),
        args_repaired=choice(asked.args_repaired),
        args_changed=choice(asked.args_changed),
        text_changed=choice(asked.text_changed),
        partial_echo=choice(asked.partial_echo),
        train_partial=asked.train_partial,
        head_changed=choice(asked.head_changed),
    )


def text_filters(settings: Settings) -> tuple[TextFilter, ...]:
    """The filters that are on."""
    asked = settings.filters
    own = tuple(TextFilter(name, pattern) for name, pattern in asked.own.items())
    return (BILLING_HEADER,) * asked.billing_header + (TOTAL_TOKENS,) * asked.total_tokens + own
