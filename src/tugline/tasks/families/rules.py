"""The eight families: each a rule from random draws to a task.

A rule draws names and values, says what is asked in one of a few wordings, and states the outcome. Rules decide nothing
about splits, seeds or directories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from tugline.tasks.families.instance import Drawn
from tugline.tasks.families.words import EXTENSIONS, KEYS, NOUNS, SETTINGS, STEMS

Rule = Callable[[Random], Drawn]


def _names(rng: Random, count: int) -> list[str]:
    """File names with distinct stems."""
    return [f"{stem}.{rng.choice(EXTENSIONS)}" for stem in rng.sample(STEMS, count)]


def _phrase(rng: Random, count: int = 2) -> str:
    return " ".join(rng.sample(NOUNS, count))


def _lines(rng: Random, count: int) -> str:
    return "".join(f"{_phrase(rng)}\n" for _ in range(count))


def _value(rng: Random) -> str:
    return rng.choice(NOUNS) if rng.random() < 0.7 else str(rng.randrange(10, 100))


def _settings(rng: Random) -> dict[str, str]:
    """Three to five settings, in file order."""
    return {key: _value(rng) for key in rng.sample(KEYS, rng.randrange(3, 6))}


def _settings_text(values: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in values.items())


def create_file(rng: Random) -> Drawn:
    """Write a given text into a new file."""
    (path,) = _names(rng, 1)
    text = _phrase(rng)
    wording = rng.choice(
        (
            'Create a file named `{path}` that contains the text "{text}".',
            'Make a new file `{path}` with the text "{text}".',
            'Write the text "{text}" to a new file called `{path}`.',
        )
    )
    return Drawn(
        instruction=wording.format(path=path, text=text),
        files={},
        expected={path: text},
        solution=f"echo '{text}' > {path}",
        facts={"path": path, "text": text},
        combination=(path, text),
    )


def edit_key(rng: Random) -> Drawn:
    """Give one key of a settings file a new value; the old value is not told."""
    path = f"{rng.choice(SETTINGS)}.cfg"
    before = _settings(rng)
    key = rng.choice(list(before))
    value = _value(rng)
    while value in before.values():
        value = _value(rng)
    after = {**before, key: value}
    wording = rng.choice(
        (
            'In `{path}`, change the value after `{key}=` to "{value}". Leave the other lines as they are.',
            'Change `{key}=` in `{path}` to the value "{value}" and keep everything else.',
            'Set `{key}=` to "{value}" in the settings file `{path}`.',
        )
    )
    return Drawn(
        instruction=wording.format(path=path, key=key, value=value),
        files={path: _settings_text(before)},
        expected={path: _settings_text(after)},
        solution=f"sed -i 's/^{key}=.*/{key}={value}/' {path}",
        facts={"path": path, "key": key, "old": before[key], "value": value},
        combination=(path, key, value),
    )


def copy_file(rng: Random) -> Drawn:
    """Copy a file under a new name; the original stays."""
    source, target, other = _names(rng, 3)
    files = {source: _lines(rng, rng.randrange(1, 4)), other: _lines(rng, 1)}
    wording = rng.choice(
        (
            "Copy `{source}` to `{target}`.",
            "Make a copy of `{source}` named `{target}`. Keep the original.",
            "Duplicate the file `{source}` as `{target}`.",
        )
    )
    return Drawn(
        instruction=wording.format(source=source, target=target),
        files=files,
        expected={**files, target: files[source]},
        solution=f"cp {source} {target}",
        facts={"source": source, "target": target, "other": other},
        combination=(source, target),
    )


def delete_file(rng: Random) -> Drawn:
    """Remove one file and no other."""
    path, *others = _names(rng, rng.randrange(3, 5))
    names = sorted([path, *others])
    files = {name: _lines(rng, 1) for name in names}
    wording = rng.choice(
        (
            "Delete the file `{path}`. Keep all other files.",
            "Remove `{path}` and nothing else.",
            "The file `{path}` is no longer needed. Please delete it.",
        )
    )
    return Drawn(
        instruction=wording.format(path=path),
        files=files,
        expected={**files, path: None},
        solution=f"rm {path}",
        facts={"path": path, "other": others[0]},
        combination=(path,),
    )


def append_line(rng: Random) -> Drawn:
    """Add a line at the end of a file."""
    (path,) = _names(rng, 1)
    before = _lines(rng, rng.randrange(1, 4))
    line = _phrase(rng)
    wording = rng.choice(
        (
            'Append the line "{line}" to `{path}`.',
            'Add to the end of `{path}` the line "{line}".',
            'The file `{path}` needs one more line at its end: "{line}".',
        )
    )
    return Drawn(
        instruction=wording.format(path=path, line=line),
        files={path: before},
        expected={path: f"{before}{line}"},
        solution=f"echo '{line}' >> {path}",
        facts={"path": path, "line": line},
        combination=(path, line),
    )


def copy_value(rng: Random) -> Drawn:
    """Look a value up in a settings file and write it to another file."""
    source = f"{rng.choice(SETTINGS)}.cfg"
    (target,) = _names(rng, 1)
    values = _settings(rng)
    key = rng.choice(list(values))
    text = _settings_text(values)
    wording = rng.choice(
        (
            "Look up the value of `{key}=` in `{source}` and write only that value to `{target}`.",
            "Write the value after `{key}=` in `{source}` into a new file `{target}`.",
            "Read `{source}` and store the value of `{key}=` in `{target}`.",
        )
    )
    return Drawn(
        instruction=wording.format(key=key, source=source, target=target),
        files={source: text},
        expected={source: text, target: values[key]},
        solution=f"sed -n 's/^{key}=//p' {source} > {target}",
        facts={"source": source, "target": target, "key": key, "value": values[key]},
        combination=(source, key, target),
    )


def count_lines(rng: Random) -> Drawn:
    """Write the number of lines of a file to another file."""
    source, target = _names(rng, 2)
    count = rng.randrange(2, 10)
    text = _lines(rng, count)
    wording = rng.choice(
        (
            "Count the lines of `{source}` and write the number to `{target}`.",
            "How many lines does `{source}` have? Put only the number in `{target}`.",
            "Write the number of lines in `{source}` to the file `{target}`.",
        )
    )
    return Drawn(
        instruction=wording.format(source=source, target=target),
        files={source: text},
        expected={source: text, target: str(count)},
        solution=f"grep -c '' {source} > {target}",
        facts={"source": source, "target": target, "count": str(count)},
        combination=(source, target),
    )


def find_word(rng: Random) -> Drawn:
    """Find which file contains a word and write its name to another file."""
    target, *names = _names(rng, rng.randrange(4, 6))
    word, *rest = rng.sample(NOUNS, 1 + 2 * len(names))
    found = rng.choice(names)
    files = {name: f"{rest[2 * i]}\n{rest[2 * i + 1]}\n" for i, name in enumerate(names)}
    files[found] = f"{files[found]}{word}\n"
    files = {name: files[name] for name in sorted(files)}
    wording = rng.choice(
        (
            'One file here contains the word "{word}". Write the name of that file to `{target}`.',
            'Find the file that contains "{word}" and write only its name to `{target}`.',
            'Which file has the word "{word}" in it? Put its name in `{target}`.',
        )
    )
    return Drawn(
        instruction=wording.format(word=word, target=target),
        files=files,
        expected={**files, target: found},
        solution=f'found=$(grep -l "{word}" *)\nprintf "%s\\n" "$found" > {target}',
        facts={"word": word, "target": target, "found": found, "other": next(n for n in files if n != found)},
        combination=(word, target),
    )


RULES: Mapping[str, Rule] = {
    "create-file": create_file,
    "edit-key": edit_key,
    "copy-file": copy_file,
    "delete-file": delete_file,
    "append-line": append_line,
    "copy-value": copy_value,
    "count-lines": count_lines,
    "find-word": find_word,
}
