import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tugline.core.columns import concat, floats, ids
from tugline.core.contracts import JournalEntry
from tugline.core.errors import StoreError, VerifyError
from tugline.engines.journal import FULL_EVERY, JournalIndex, JournalWriter, journal_path, next_boot, read_journal

columns = st.lists(st.integers(0, 2**31 - 1), max_size=60).map(ids)
runs = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=3).map(tuple)


@st.composite
def histories(draw):
    """Entries of a few sessions; prompts often extend or branch from what came before."""
    out: list[JournalEntry] = []
    for i in range(draw(st.integers(1, 12))):
        session = draw(st.sampled_from(["a", "b"]))
        earlier = [e for e in out if e.session_id == session]
        prompt = draw(columns)
        if earlier and draw(st.booleans()):
            base = draw(st.sampled_from(earlier))
            full = concat([base.prompt_ids, base.ids])
            prompt = concat([full[: 4 * draw(st.integers(0, len(full) // 4))], prompt])
        sampled = draw(columns)
        logprobs = floats([-0.5] * (len(sampled) // 4))
        out.append(JournalEntry(f"r{i}", session, prompt, sampled, logprobs, "stop", draw(runs)))
    return out


def write(path, entries):
    writer = JournalWriter(path)
    for entry in entries:
        writer.append(entry)
        writer.flush()
    writer.close()


def long_session(n=12, session="s"):
    prompt, out = ids(range(100)), []
    for i in range(n):
        sampled = ids(range(i, i + 20))
        out.append(JournalEntry(f"{session}{i}", session, prompt, sampled, floats([-1.0] * 20), "stop", ((0, i),)))
        prompt = concat([prompt, sampled, ids([7, 8, 9])])
    return out


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(histories())
def test_what_was_written_is_read(tmp_path_factory, entries):
    path = tmp_path_factory.mktemp("j") / "journal-0001-ab.bin"
    write(path, entries)
    assert list(read_journal(path)) == entries
    index = JournalIndex(path.parent)
    assert [index.get(e.engine_ref) for e in reversed(entries)] == entries[::-1]


def test_a_cut_at_any_byte_loses_only_what_is_behind_it(tmp_path):
    entries = long_session(4)
    whole = tmp_path / "journal-0001-ab.bin"
    write(whole, entries)
    data = whole.read_bytes()
    cut = tmp_path / "cut.bin"
    counts = []
    for size in range(len(data) + 1):
        cut.write_bytes(data[:size])
        read = list(read_journal(cut))
        assert read == entries[: len(read)]
        counts.append(len(read))
    assert counts == sorted(counts) and set(counts) == {0, 1, 2, 3, 4}


def test_every_bit_flip_is_found_and_located(tmp_path):
    entries = long_session(3)
    path = tmp_path / "journal-0001-ab.bin"
    write(path, entries)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        with pytest.raises(VerifyError, match=r"journal-0001-ab\.bin at byte \d+"):
            list(read_journal(path))


def test_deltas_keep_it_small_and_chains_end(tmp_path):
    entries = long_session(3 * FULL_EVERY)
    path = tmp_path / "journal-0001-ab.bin"
    write(path, entries)
    raw = sum(len(e.prompt_ids) + len(e.ids) * 2 for e in entries)
    assert path.stat().st_size < raw / 10
    index = JournalIndex(path)
    assert index.get(entries[-1].engine_ref) == entries[-1]  # a cold read in the middle of a chain
    assert len(index) == len(entries) and list(index) == [e.engine_ref for e in entries]


def test_a_branch_is_stored_as_one(tmp_path):
    first, second = long_session(2)
    branch = JournalEntry(
        "b", "s", concat([second.prompt_ids[:440], ids([5, 5])]), ids([1]), floats([-1]), "length", ()
    )
    path = tmp_path / "journal-0001-ab.bin"
    write(path, [first, second])
    before = path.stat().st_size
    whole = tmp_path / "journal-0002-ab.bin"
    write(whole, [first, second, branch])
    assert whole.stat().st_size - before < 120
    assert JournalIndex(whole).get("b") == branch


def test_many_boots_in_one_directory(tmp_path):
    names = []
    for life in ("x", "y"):
        names.append(next_boot(tmp_path))
        write(journal_path(tmp_path, names[-1]), long_session(3, life))
    assert names == sorted(names) and len(set(names)) == 2
    assert [e.engine_ref for e in read_journal(tmp_path)] == ["x0", "x1", "x2", "y0", "y1", "y2"]


def test_an_open_index_sees_what_is_added(tmp_path):
    entries = long_session(3)
    writer = JournalWriter(journal_path(tmp_path, next_boot(tmp_path)))
    index = JournalIndex(tmp_path)
    for entry in entries:
        assert index.get(entry.engine_ref) is None
        writer.append(entry)
        writer.flush()
        assert index.get(entry.engine_ref) == entry
    writer.close()


def test_nothing_there_is_an_empty_journal(tmp_path):
    assert JournalIndex(tmp_path / "none").get("x") is None
    assert list(read_journal(tmp_path)) == []


def test_a_forgotten_session_is_written_whole_again(tmp_path):
    first, second = long_session(2)
    path = journal_path(tmp_path, next_boot(tmp_path))
    writer = JournalWriter(path)
    writer.append(first)
    writer.forget("s")
    writer.append(second)
    writer.close()
    assert list(read_journal(path)) == [first, second]
    assert path.stat().st_size > len(first.prompt_ids) + len(second.prompt_ids)


def test_a_closed_journal_refuses(tmp_path):
    writer = JournalWriter(tmp_path / "j.bin")
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="closed"):
        writer.append(long_session(1)[0])
    with pytest.raises(StoreError, match="create journal"):
        JournalWriter(tmp_path / "j.bin")


def test_a_failed_write_leaves_the_file_readable(tmp_path, monkeypatch):
    import os

    entries = long_session(3)
    path = tmp_path / "j.bin"
    writer = JournalWriter(path)
    writer.append(entries[0])
    writer.flush()
    real = os.write

    def half_then_full(fd, data):
        if len(data) < 30:
            raise OSError(28, "No space left on device")
        return real(fd, data[:-20])

    writer.append(entries[1])
    monkeypatch.setattr(os, "write", half_then_full)
    with pytest.raises(StoreError, match="No space"):
        writer.flush()
    monkeypatch.setattr(os, "write", real)
    writer.append(entries[2])
    writer.close()
    assert list(read_journal(path)) == [entries[0], entries[2]]


def test_the_same_name_twice_is_damage(tmp_path):
    entry = long_session(1)[0]
    write(tmp_path / "j.bin", [entry, entry])
    with pytest.raises(VerifyError, match="twice"):
        list(read_journal(tmp_path / "j.bin"))
