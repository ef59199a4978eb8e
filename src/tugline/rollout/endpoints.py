"""How an agent is told where its session is: one base URL per API, and the variables that programs read. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tugline.core.contracts import Access


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Base URLs of a session, as the clients of each API want them: with or without a version at the end."""

    openai: str
    """Ends in /v1. Chat Completions and Responses."""
    anthropic: str
    gemini: str

    @classmethod
    def at(cls, url: str) -> Endpoints:
        """Of a gateway's base URL."""
        return cls(openai=f"{url}/v1", anthropic=url, gemini=url)

    def env(self, key: str) -> dict[str, str]:
        """Environment variables that point agents of every API to the session."""
        return {
            "OPENAI_BASE_URL": self.openai,
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": self.anthropic,
            "ANTHROPIC_API_KEY": key,
            "GOOGLE_GEMINI_BASE_URL": self.gemini,
            "GEMINI_API_KEY": key,
        }


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session just opened. `key` is its secret: told here once, stored nowhere."""

    session: str
    key: str
    group: str
    task: str
    index: int
    name: str | None
    openai: str
    anthropic: str
    gemini: str
    env: dict[str, str]


def opened(access: Access, group: str, task: str, index: int, name: str | None) -> OpenedSession:
    """Everything that the opener needs to start an agent."""
    ends = Endpoints.at(access.url)
    return OpenedSession(
        session=access.session_id,
        key=access.secret,
        group=group,
        task=task,
        index=index,
        name=name,
        openai=ends.openai,
        anthropic=ends.anthropic,
        gemini=ends.gemini,
        env=ends.env(access.secret),
    )
