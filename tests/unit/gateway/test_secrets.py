import pytest

from tugline.core.errors import Forbidden, Unauthorized
from tugline.gateway.secrets import SecretTable


def test_a_secret_opens_its_own_session_only() -> None:
    table = SecretTable()
    a, b = table.issue("a"), table.issue("b")
    assert (table.session_of(a), table.session_of(b)) == ("a", "b")


@pytest.mark.parametrize("secret", [None, "", "tug-unknown", "a"])
def test_unknown_credentials_are_unauthorized(secret: str | None) -> None:
    table = SecretTable()
    table.issue("a")
    with pytest.raises(Unauthorized):
        table.session_of(secret)


def test_an_ended_session_is_forbidden_for_good() -> None:
    table = SecretTable()
    secret, other = table.issue("a"), table.issue("b")
    table.revoke("a")
    with pytest.raises(Forbidden):
        table.session_of(secret)
    assert table.session_of(other) == "b"


def test_clear_text_secrets_are_not_kept() -> None:
    table = SecretTable()
    secret = table.issue("a")
    assert secret not in repr(vars(table))
