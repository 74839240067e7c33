"""Attacks by files of static token trees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.drafting.static import FOLDER, MOST_NODES, tree
from specscope.engine.errors import UsageError
from tests.security.odd import BOUNDED, ODD, SPECIAL, put, refused, returns_or_refuses


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a tree's file and returns its name."""

    def write(content: str | bytes) -> str:
        path = tmp_path / "tree.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def path_of(depth: int) -> str:
    return "paths = [" + ",".join(str([0] * level) for level in range(1, depth + 1)) + "]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (path_of(65), "it has 65 nodes; there must be at least 1 and at most 64"),
        ("paths = [" + "[0]," * 100_000 + "]", "it has 100000 nodes"),
        (f"paths = [[0], [{'0,' * 100_000}]]", "has no parent; add [0, 0, 0"),
        ("paths = [[1000000000000]]", "[1000000000000] has no elder sibling"),
        (f"paths = [[{'9' * 5000}]]", "cannot be read"),
        ("paths = [[-1]]", "paths must be a list of nodes"),
        ("paths = [[0.5]]", "paths must be a list of nodes"),
        ("paths = [[true]]", "paths must be a list of nodes"),
        ("paths = [[nan]]", "paths must be a list of nodes"),
        ("paths = []", "paths must be a list of nodes"),
        ("paths = [[]]", "paths must be a list of nodes"),
        ("paths = 5", "paths must be a list of nodes"),
        ("", "paths must be a list of nodes"),
        ("[" * 100_000, "cannot be read"),
        ("paths = " + "[" * 100_000, "cannot be read"),
        (b"\xff\xfe", "is not text"),
        (b"#" * (1 << 20) + b"\n", "has 1048577 bytes; the limit is 1048576"),
    ],
)
def test_an_invalid_tree_is_refused(written, content, message):
    assert message in refused(lambda: tree(written(content)), UsageError)


@pytest.mark.parametrize("kind", SPECIAL)
def test_anything_else_in_place_of_a_tree_is_refused(tmp_path, kind):
    path = tmp_path / "x.toml"
    put(path, kind)
    assert str(path) in refused(lambda: tree(str(path)), UsageError)


@pytest.mark.parametrize(
    "name", ["/dev/zero", "", "..", "../profiles/8xA100", "x\ny" * 1000, "a\x00.toml", "x" * 5000 + ".toml"]
)
def test_an_unknown_name_of_a_tree_is_refused(name):
    with pytest.raises(UsageError):
        tree(name)


def test_the_deepest_tree_is_read(written):
    assert tree(written(path_of(MOST_NODES))).depth == MOST_NODES


@BOUNDED
@given(
    st.lists(
        st.lists(st.integers(0, 3), max_size=5)
        | st.sampled_from([x for x in ODD if isinstance(x, int | float | list)]),
        max_size=70,
    )
)
def test_any_list_is_a_tree_or_refused(tmp_path_factory, paths):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(f"paths = {paths}".replace("True", "true").replace("False", "false"))
    returns_or_refuses(lambda: tree(str(path)))


@BOUNDED
@given(at=st.integers(0, 2000), junk=st.binary(min_size=1, max_size=6))
def test_a_tree_with_any_other_bytes_is_read_or_refused(tmp_path_factory, at, junk):
    path = tmp_path_factory.getbasetemp() / "junk.toml"
    content = (FOLDER / "medusa.toml").read_bytes()
    at %= len(content)
    path.write_bytes(content[:at] + junk + content[at + len(junk) :])
    returns_or_refuses(lambda: tree(str(path)))
