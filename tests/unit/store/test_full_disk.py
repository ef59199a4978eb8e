"""Running out of space: refused calls are refused, acknowledged ones stay, and the store works again afterwards."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LIMITED = """
import asyncio, json, os, resource, sys
from pathlib import Path
from unit.store.samples import Builder, call_for
from tugline.core.errors import StoreError
from tugline.store import RunStore

async def main(run, kind):
    store = RunStore.create(Path(run), "")
    limit = (Path(run) / "run.db-wal").stat().st_size + 300_000
    filler = Path(run) / "filler"
    if kind == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    else:
        stat = os.statvfs(run)
        filler.write_bytes(b"x" * (stat.f_bavail * stat.f_frsize - 300_000))
    builders = [Builder(f"s{n}", seed=n) for n in range(40)]
    for b in builders:
        b.add(bridge=8_000, sampled=10)
    commits = [store.commit(call_for(b.turns[0]), b.turns[0]) for b in builders]
    results = await asyncio.gather(*commits, return_exceptions=True)
    assert all(r is None or isinstance(r, StoreError) for r in results), results
    failed = [b for b, r in zip(builders, results) if r is not None]
    kept = [b for b, r in zip(builders, results) if r is None]
    for b in kept:
        assert store.iter_turns(b.session_id) == b.turns
    for b in failed:
        assert store.iter_turns(b.session_id) == []
    if kind == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        filler.unlink()
    for b in failed:
        await store.commit(call_for(b.turns[0]), b.turns[0])
    await store.close()
    with RunStore.open(Path(run), write=False) as done:
        for b in builders:
            assert done.iter_turns(b.session_id) == b.turns
    codes = sorted({r.detail_code for r in results if r is not None})
    message = next(str(r) for r in results if r is not None)
    print(json.dumps({"kept": len(kept), "failed": len(failed), "codes": codes, "message": message}))

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""
TESTS = Path(__file__).parents[2]


def limited(prefix: list[str], run: Path, kind: str) -> dict[str, object]:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", f"import sys; sys.path.insert(0, {str(TESTS)!r})\n{LIMITED}", str(run), kind],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_write_that_the_system_refuses(tmp_path: Path) -> None:
    result = limited([], tmp_path / "run", "limit")
    assert result["kept"] and result["failed"], result
    assert "run.db cannot be written" in str(result["message"])


def test_a_full_file_system_is_named_with_its_free_space(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    mount = f'mount -t tmpfs -o size=4m none "{tmp_path}" && exec "$@"'
    prefix = [unshare or "", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if not unshare or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace to mount a small tmpfs in")
    result = limited(prefix, tmp_path / "run", "fill")
    assert result["kept"] and result["failed"], result
    assert result["codes"] == ["disk_full"]
    assert "0 MiB are free there" in str(result["message"])
