"""Attacks by latency profiles and by files of static token trees."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.drafting.static import FOLDER as TREES
from specscope.engine.drafting.static import MOST_NODES, tree
from specscope.engine.errors import UsageError
from specscope.engine.simulate.profile import FOLDER, Profile
from specscope.engine.simulate.roofline import Grid
from tests.security.odd import BOUNDED, ODD, SPECIAL, put, refused, returns_or_refuses

TEXTS = {
    name: (FOLDER / f"{name}.toml").read_text("utf-8") for name in ("pearl-3xA100", "8xA100", "A100-OPT")
}
NUMBERS = f"0 -1 1 3 1_000_000_000 {'9' * 30} {'9' * 5000} 1e308 1e-308 -1e-9 nan inf 0.5 2026-01-01 true"
TEXTS_AND_TABLES = (
    '""',
    '"x"',
    '"x\\ny"',
    '"\\u001b[2J"',
    f'"{"x" * 5000}"',
    '"""a\nb"""',
    "[]",
    "[1]",
    '["a", "a"]',
)
VALUES = (*NUMBERS.split(), *TEXTS_AND_TABLES, "{}", "{x = 1}", "[" * 5000)


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a file and returns its name."""

    def write(content: str | bytes, stem: str = "tree") -> str:
        path = tmp_path / f"{stem}.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


CHANGES = """
8xA100 | gpus = 8 | gpus = 1_000_000_000 | gpus is 1000000000; it must be at least 1 and at most 1024
8xA100 | gpus = 8 | gpus = 0 | gpus is 0; it must be at least 1 and at most 1024
8xA100 | gpus = 8 | gpus = ["a", "a"] | gpus is ['a', 'a']; each name may appear once
8xA100 | gpus = 8 | gpus = MANY | gpus has 2000 names; there may be at most 1024
8xA100 | gpus = 8 | gpus = ["a\\nb"] | gpus has the name 'a\\nb'; it must be one line
8xA100 | gpus = 8 | devices = [1, 2] | devices.0 is 1; it must be of type dict
pearl-3xA100 | gpus = 2 | gpus = 1_000_000_000 | devices.1.gpus is 1000000000; it must be at least 1
pearl-3xA100 | name = "gpu0" | name = "a"⏎label = 5 | cannot be read
pearl-3xA100 | speed = 49.34 | speed = 1e308 | speed is 1e+308; it must be at least 0.001
pearl-3xA100 | speed = 49.34 | speed = nan | speed is nan; it must be at least 0.001
pearl-3xA100 | layers = 32 | layers = 9999999999999999999999999999999999999999 | layers is 99999999
pearl-3xA100 | dim = 4096 | dim = 1_000_000_000_000 | dim is 1000000000000; it must be
pearl-3xA100 | = 2039 | = 1e-300 | bandwidth_gb_s is 1e-300; it must be at least 0.001
pearl-3xA100 | communicate_ms = 0.2 | communicate_ms = 1e300 | communicate_ms is 1e+300; it must be
pearl-3xA100 | communicate_ms = 0.2 | communicate_ms = -0.2 | communicate_ms is -0.2; it must be
pearl-3xA100 | "codellama-7b"] | "a\\nb"] | models has the name 'a\\nb'; it must be one line
pearl-3xA100 | layers = 32 | layers = LONG | cannot be read
pearl-3xA100 | layers = 32 | layers = DEEP | cannot be read
"""
"""A profile, a part of its text, another text, and the refusal."""
LARGE = {"MANY": f"[{'1,' * 2000}]", "LONG": "9" * 5000, "DEEP": "[" * 50_000}


@pytest.mark.parametrize("line", CHANGES.strip().splitlines())
def test_a_number_or_name_out_of_range_is_refused(written, line):
    stem, old, new, message = line.replace("⏎", "\n").split(" | ")
    key, _, value = new.rpartition(" ")
    assert old in TEXTS[stem]
    new = f"{key} {LARGE[value]}" if value in LARGE else new
    assert message in refused(
        lambda: Profile.load(written(TEXTS[stem].replace(old, new, 1), stem)), UsageError
    )


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("read", [Profile.load, tree])
def test_anything_else_in_place_of_a_profile_or_tree_is_refused(tmp_path, read, kind):
    path = tmp_path / "x.toml"
    put(path, kind)
    assert str(path) in refused(lambda: read(str(path)), UsageError)


@pytest.mark.parametrize("name", ["", " ", "/dev/zero", "..", "x\ny" * 1000, "\x1b[2J", "8XA100"])
def test_the_error_of_an_unknown_profile_lists_the_known_ones(name):
    assert "choose one of 8xA100, A100-40G, A100-OPT, H100" in refused(lambda: Profile.load(name), UsageError)


def test_a_grid_with_a_million_gaps_is_refused_at_the_first():
    points = [[1 + i, i, 1 + i, 1.0] for i in range(9000)]
    with pytest.raises(UsageError, match="there is no time for rows, context, batch = "):
        Grid.of(points)
    with pytest.raises(UsageError, match="there are 20000 points; there may be at most 10000"):
        Grid.of([[1, 0, 1, 1.0]] * 20_000)


@pytest.mark.parametrize(
    "point",
    [
        [1, 0, 1, math.nan],
        [1, 0, 1, 1e-300],
        [1, 0, 1, 1e300],
        [math.inf, 0, 1, 1.0],
        [10**400, 0, 1, 1.0],
        [math.nan, 0, 1, 1.0],
        [1] * 9000,
    ],
)
def test_a_measured_point_out_of_range_is_refused(point):
    refused(lambda: Grid.of([point]), UsageError)


def lines(stem: str) -> list[str]:
    return [line for line in TEXTS[stem].splitlines() if " = " in line and not line.startswith("#")]


@BOUNDED
@given(data=st.data())
def test_a_profile_with_any_line_changed_is_read_or_refused(tmp_path_factory, data):
    stem = data.draw(st.sampled_from(sorted(TEXTS)))
    line = data.draw(st.sampled_from(lines(stem)))
    value = data.draw(st.sampled_from(VALUES))
    key = line.split(" = ")[0]
    path = tmp_path_factory.getbasetemp() / f"{stem}.toml"
    path.write_text(TEXTS[stem].replace(line, f"{key} = {value}", 1), "utf-8")

    def ask():
        for latency in Profile.load(str(path)).latencies.values():
            assert math.isfinite(latency.target.forward_us(latency.hardware, 4, 1000))
            assert math.isfinite(latency.c)

    returns_or_refuses(ask)


# Attacks by files of static token trees.


def chain_of(depth: int) -> str:
    return "paths = [" + ",".join(str([0] * level) for level in range(1, depth + 1)) + "]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (chain_of(65), "it has 65 nodes; there must be at least 1 and at most 64"),
        ("paths = [" + "[0]," * 100_000 + "]", "it has 100000 nodes"),
        (f"paths = [[0], [{'0,' * 100_000}]]", "has no parent; add [0, 0, 0"),
        ("paths = [[1000000000000]]", "[1000000000000] has no elder sibling"),
        (f"paths = [[{'9' * 5000}]]", "cannot be read"),
        *((f"paths = {x}", "paths must be a list of nodes") for x in ("[[-1]]", "[[0.5]]", "[[true]]", "[[nan]]", "[]", "[[]]", "5")),
        ("", "paths must be a list of nodes"),
        *((content, "cannot be read") for content in ("[" * 100_000, "paths = " + "[" * 100_000)),
        (b"\xff\xfe", "is not text"),
        (b"#" * (1 << 20) + b"\n", "has 1048577 bytes; the limit is 1048576"),
    ],
)  # fmt: skip
def test_an_invalid_tree_is_refused(written, content, message):
    assert message in refused(lambda: tree(written(content)), UsageError)


@pytest.mark.parametrize(
    "name", ["/dev/zero", "", "..", "../profiles/8xA100", "x\ny" * 1000, "a\x00.toml", "x" * 5000 + ".toml"]
)
def test_an_unknown_name_of_a_tree_is_refused(name):
    with pytest.raises(UsageError):
        tree(name)


def test_the_deepest_tree_is_read(written):
    assert tree(written(chain_of(MOST_NODES))).depth == MOST_NODES


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
    content = (TREES / "medusa.toml").read_bytes()
    at %= len(content)
    path.write_bytes(content[:at] + junk + content[at + len(junk) :])
    returns_or_refuses(lambda: tree(str(path)))
