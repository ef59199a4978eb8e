import re

from tugline.core.ident import new_id, new_secret, secret_digest


def test_ids_are_unique_and_safe_as_file_names() -> None:
    ids = {new_id("ses") for _ in range(2000)}
    assert len(ids) == 2000
    assert all(re.fullmatch(r"ses_[0-9a-z]{21}", i) for i in ids)


def test_secrets_hold_256_bits_and_their_digest_tells_nothing() -> None:
    secret = new_secret()
    assert len(secret) >= 4 + 43
    assert secret.encode() not in secret_digest(secret)
    assert len({new_secret() for _ in range(100)}) == 100
