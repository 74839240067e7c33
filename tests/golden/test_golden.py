from __future__ import annotations

import subprocess
from itertools import islice
from pathlib import Path

import pytest

from tests.golden import stored
from tests.golden.__main__ import main
from tests.golden.groups import GROUPS, PACKED
from tests.golden.texts import ROOT, WIDTH, flat

SCREEN = 50
"""Lines of a failed comparison; `python -m tests.golden GROUP` prints more."""


@pytest.mark.parametrize("group", GROUPS)
def test_outputs_are_as_recorded(group: str) -> None:
    known, found = stored.read(group, group in PACKED), dict(GROUPS[group]())
    assert not [name for name, text in found.items() if str(ROOT) in text]
    if known != found:
        lines = [
            *islice(stored.changes(known, found, SCREEN // 2), SCREEN),
            f"python -m tests.golden {group}",
        ]
        pytest.fail("\n".join(lines), pytrace=False)


def test_the_comparison_names_lost_new_and_changed_outputs_with_their_lines() -> None:
    known = {"lost": "", "a": "1\n2\n3\n4\n5", "b": "2", "c": "0\n2", "equal": "x"}
    found = {"new": "", "a": "1\n2\nthree\n4\n5", "b": "two", "c": "0\ntwo", "equal": "x"}
    more = {f"b{i}": "2" for i in range(8)}, {f"b{i}": "two" for i in range(8)}
    assert list(stored.changes(known | more[0], found | more[1], 3)) == [
        "lost: lost",
        "new: new",
        *("changed: a", "  …", "   2", "  -3", "  … 2 more lines"),
        *("changed: b", "  …", "  -2", "  +two", "  the same in b0, b1, b2, b3, b4, b5 and 2 more"),
        *("changed: c", "  …", "   0", "  -2", "  … 1 more lines"),
    ]


def test_a_line_has_the_path_of_its_value_and_rows_have_their_names() -> None:
    long = "x" * WIDTH
    assert flat({"a": [1, {"b": long}], "run_id": 7}) == f'.a[] = 1\n.a[1].b = "{long}"'
    assert flat([{"name": "x", "b": long}, {"name": "y"}]).split("\n")[1:] == [
        '[x].name = "x"',
        '[] = {"name": "y"}',
    ]
    assert flat([{"name": "x", "b": long}, {"name": "x"}]).split("\n")[1] == '[0].name = "x"'
    assert flat([*range(100)]).split("\n")[1] == f"[16:] = {[*range(16, 32)]}"
    assert flat(f"{ROOT}/assets") == '. = "/assets"'


def test_a_change_deep_in_a_long_line_is_shown() -> None:
    line = "x" * 1000
    assert "+" + "x" * 100 + "y" in "\n".join(stored.difference(line, line[:700] + "y" + line[701:]))


def test_recorded_texts_are_read_as_they_were_and_packed_the_same_each_time() -> None:
    texts = {"one": "a\n\nb\n", "two, of 3": "", "three": "== \u2028 é"}
    assert stored.split(stored.join(texts)) == texts
    odd = texts | {"four": "=== a\r\n"}
    assert stored.unpack(stored.pack(odd)) == odd
    assert stored.pack(odd) == stored.pack(dict(odd))
    with pytest.raises(AssertionError, match="the text of four needs a packed group"):
        stored.join(odd)


def test_outputs_are_compared_with_those_of_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stored, "FOLDER", tmp_path)
    monkeypatch.setitem(GROUPS, "training", lambda: iter([("pair", "1\n2")]))
    assert main(["training", "--record"]) == 0
    assert main(["training"]) == 0
    named = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*named, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setitem(GROUPS, "training", lambda: iter([("pair", "1\ntwo"), ("more", "")]))
    assert main(["training", "--write", str(tmp_path / "out")]) == 1
    assert (tmp_path / "out" / "training pair.txt").read_text() == "1\ntwo"
    assert main(["training", "--record"]) == 0
    assert main(["training"]) == 0
    capsys.readouterr()
    assert main(["training", "--stored", "--against", "HEAD"]) == 1
    lines = capsys.readouterr().out.split("\n")
    assert lines[:6] == [
        "training: 2 of 2 outputs differ",
        "new: more",
        "changed: pair",
        "  …",
        "   1",
        "  -2",
    ]
    assert main(["form", "--stored", "--against", "HEAD"]) == 0, "neither has outputs of this group"
    for wrong in (["training", "--against", "nothing"], ["nothing"]):
        with pytest.raises(SystemExit):
            main(wrong)
