import gzip
import zlib

import pytest
import zstandard

from tugline.core.errors import BadRequest, TooLarge
from tugline.gateway.app import _decompress, _match, _split_prefix

BODY = b'{"a": 1}' * 100


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/models", ("/v1/models", None)),
        ("/s/tug-x/v1/models", ("/v1/models", "tug-x")),
        ("/s/tug-x//v1//models/", ("/v1/models", "tug-x")),
        ("/s/tug-x", ("/", "tug-x")),
        ("/", ("/", None)),
    ],
)
def test_a_secret_may_ride_on_the_path(path: str, expected: tuple[str, str | None]) -> None:
    assert _split_prefix(path) == expected


def test_model_names_in_paths_may_hold_slashes_and_escapes() -> None:
    pattern = "/v1beta/models/{model}:generateContent"
    assert _match(pattern, "/v1beta/models/a%2Fb/c:generateContent") == {"model": "a/b/c"}
    assert _match(pattern, "/v1beta/models/:generateContent") is None
    assert _match("/v1/models", "/v1/models/x") is None


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("", BODY),
        ("identity", BODY),
        ("gzip", gzip.compress(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("zstd", zstandard.compress(BODY)),
    ],
    ids=["none", "identity", "gzip", "deflate", "zstd"],
)
def test_compressed_bodies_are_read(encoding: str, data: bytes) -> None:
    assert _decompress(data, encoding, 10_000) == BODY


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_bombs_stop_at_the_limit(encoding: str) -> None:
    raw = b"\0" * (8 << 20)
    data = gzip.compress(raw) if encoding == "gzip" else zstandard.compress(raw)
    assert len(data) < 20_000
    with pytest.raises(TooLarge):
        _decompress(data, encoding, 1 << 20)


@pytest.mark.parametrize(("encoding", "data"), [("gzip", b"nope"), ("zstd", b"nope"), ("br", BODY)])
def test_broken_or_unknown_encodings_are_bad_requests(encoding: str, data: bytes) -> None:
    with pytest.raises(BadRequest):
        _decompress(data, encoding, 1 << 20)
