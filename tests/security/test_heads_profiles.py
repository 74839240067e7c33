"""Attacks by the files of drafting heads, latency profiles and static token trees."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from specscope.engine.drafting.static import MOST_NODES, tree
from specscope.engine.errors import UsageError
from specscope.engine.heads.files import check_head, read_head
from specscope.engine.heads.kinds import KINDS
from specscope.engine.simulate.grid import Grid
from specscope.engine.simulate.profile import FOLDER, Profile
from tests.engine.heads.random_heads import make_heads
from tests.engine.model.tiny import reference, save
from tests.security.odd import BOUNDED, ODD, SPECIAL, edit, put, refused, returns_or_refuses, spoiled

torch.set_num_threads(1)
WEIGHTS = "model.safetensors"
NAMES = """
hydra_mlp.0.1.linear.weight hydra_mlp.99.1.linear.weight hydra_lm_head.0.weight 0.0.linear.weight fc.weight d2t t2d
9999999999.0.linear.weight 0.9999999999.linear.weight ٣.0.linear.weight medusa_head.0.0.linear.weight medusa_head.x
fusion_fc.weight midlayer.x lm_head.weight layers.1.x
"""
ODD_NAMES = ("1" * 5000 + ".0.linear.weight", "x\ny", "\x1b[2J", "prefix_embeding_layer\n", "")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a tiny target, and the folder of a head of each kind for it."""
    folder = tmp_path_factory.mktemp("made")
    save(reference("llama"), folder / "target")
    return folder / "target", make_heads(folder / "heads", folder / "target")


@pytest.fixture
def head(made, tmp_path):
    """Return a function that copies the head of a kind, to be spoiled."""
    return lambda kind: shutil.copytree(made[1] / kind, tmp_path / kind)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("medusa", {"heads": 10**9}, "heads is 1000000000; it must be a whole number, at least 1 and at most 64"),
        ("hydra", {"layers": -1}, "layers is -1; it must be a whole number, at least 1 and at most 64"),
        ("medusa", {"hidden_size": 10**12}, "hidden_size is 1000000000000; it must be a whole number"),
        ("medusa", {"vocab_size": "97"}, "vocab_size is '97'; it must be a whole number"),
        ("parallelspec_eagle", {"masks": 10**9}, "masks is 1000000000; it must be a whole number"),
        ("eagle3", {"draft_vocab": 10**12}, "draft_vocab is 1000000000000; it must be a whole number"),
        ("eagle3", {"features": [0] * 100_000}, "it must hold at most 64 whole numbers, at least 0"),
        ("eagle3", {"features": [10**9]}, "it must hold at most 64 whole numbers, at least 0 and at most 1024"),
        ("eagle", {"kind": "x\ny" * 1000}, "it must be one of dflash, eagle, eagle3, hydra"),
        ("eagle", {"kind": ["eagle"]}, "kind is ['eagle']; it must be one of"),
        ("eagle", {"embedding_scale": float("nan")}, "embedding_scale is nan; it must be a number above 0"),
        ("eagle", {"shape": "x" * 10_000}, "it must hold the fields of a Llama config"),
        ("eagle", {"specscope_head": {"x": "y" * 10_000}}, "this version reads 1"),
        ("eagle", {"features": 5}, "is no head's config"),
    ],
)  # fmt: skip
def test_an_invalid_size_or_type_is_refused_with_its_range(made, head, kind, change, message):
    path = head(kind)
    edit(path / "config.json", **change)
    assert message in refused(lambda: read_head(path, made[0]))


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
@pytest.mark.parametrize("kind", [kind for kind in SPECIAL if kind != "nothing"])
def test_anything_else_in_place_of_a_file_is_refused(made, head, name, kind):
    path = head("medusa")
    put(path / name, kind)
    refused(lambda: read_head(path, made[0]))


def test_more_than_1000_files_are_refused(head):
    path = head("medusa")
    (path / WEIGHTS).unlink()
    for i in range(1001):
        (path / f"{i}.safetensors").touch()
    assert "holds 1001 *.safetensors; there may be at most 1000" in refused(lambda: check_head(path))


def test_tokens_outside_the_vocabulary_are_refused(made, head):
    path = head("eagle3")
    tensors = {name: tensor.clone() for name, tensor in load_file(path / WEIGHTS).items()}
    tensors["d2t"][5] = 2**62
    save_file(tensors, path / WEIGHTS)
    assert "d2t maps draft token 5 to" in refused(lambda: read_head(path, made[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_any_odd_value_in_a_config_is_harmless(made, kind):
    path = made[1] / kind / "config.json"
    content = path.read_text()

    @BOUNDED
    @given(spoiled(json.loads(content)))
    def check(config):
        path.write_text(json.dumps(config))
        returns_or_refuses(lambda: read_head(path.parent, made[0]))

    try:
        check()
    finally:
        path.write_text(content)


@BOUNDED
@given(
    names=st.lists(st.sampled_from((*NAMES.split(), *ODD_NAMES)), min_size=1, max_size=4, unique=True),
    shape=st.sampled_from([(), (0,), (32,), (32, 32), (97, 32), (2, 3, 4)]),
    config=spoiled({"hidden_size": 32, "intermediate_size": 56, "num_attention_heads": 4, "vocab_size": 97}),
)
def test_any_tensor_names_and_shapes_are_a_head_or_refused(made, names, shape, config):
    path = made[1].parent / "published"
    path.mkdir(exist_ok=True)
    save_file({name: torch.zeros(shape) for name in names}, path / WEIGHTS)
    (path / "config.json").write_text(json.dumps(config))
    returns_or_refuses(lambda: read_head(path, made[0]))


def test_correct_heads_load_and_one_for_another_target_is_refused(made, head):
    for kind in KINDS:
        assert read_head(made[1] / kind, made[0]).config.kind == kind
    path = head("medusa")
    edit(path / "config.json", hidden_size=64)
    with pytest.raises(UsageError, match=r"its hidden_size is 64, that of .* is 32"):
        read_head(path, made[0])


TEXTS = {
    name: (FOLDER / f"{name}.toml").read_text("utf-8") for name in ("pearl-3xA100", "8xA100", "A100-OPT")
}
NUMBERS = f"0 -1 1 3 1_000_000_000 {'9' * 30} {'9' * 5000} 1e308 1e-308 -1e-9 nan inf 0.5 2026-01-01 true"
WORDS = ('""', '"x"', '"x\\ny"', '"\\u001b[2J"', f'"{"x" * 5000}"', '"""a\nb"""')
TABLES = ("[]", "[1]", '["a", "a"]', "{}", "{x = 1}", "[" * 5000)


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


def test_a_grid_of_measured_points_with_gaps_too_many_or_odd_points_is_refused():
    points = [[1 + i, i, 1 + i, 1.0] for i in range(9000)]
    assert "there is no time for rows, context, batch = " in refused(lambda: Grid.of(points), UsageError)
    many = [[1, 0, 1, 1.0]] * 20_000
    assert "there are 20000 points; there may be at most 10000" in refused(lambda: Grid.of(many), UsageError)
    times, rows = (math.nan, 1e-300, 1e300), (math.inf, 10**400, math.nan)
    for point in (*([1, 0, 1, us] for us in times), *([row, 0, 1, 1.0] for row in rows), [1] * 9000):
        refused(lambda point=point: Grid.of([point]), UsageError)


def lines(stem: str) -> list[str]:
    return [line for line in TEXTS[stem].splitlines() if " = " in line and not line.startswith("#")]


@BOUNDED
@given(data=st.data())
def test_a_profile_with_any_line_changed_is_read_or_refused(tmp_path_factory, data):
    stem = data.draw(st.sampled_from(sorted(TEXTS)))
    line = data.draw(st.sampled_from(lines(stem)))
    value = data.draw(st.sampled_from((*NUMBERS.split(), *WORDS, *TABLES)))
    key = line.split(" = ")[0]
    path = tmp_path_factory.getbasetemp() / f"{stem}.toml"
    path.write_text(TEXTS[stem].replace(line, f"{key} = {value}", 1), "utf-8")

    def ask():
        for latency in Profile.load(str(path)).latencies.values():
            assert math.isfinite(latency.target.forward_us(latency.hardware, 4, 1000))
            assert math.isfinite(latency.c)

    returns_or_refuses(ask)


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


NO_TREES = ("/dev/zero", "", "..", "../profiles/8xA100", "x\ny" * 1000, "a\x00.toml", "x" * 5000 + ".toml")


@pytest.mark.parametrize("name", NO_TREES)
def test_an_unknown_name_of_a_tree_is_refused(name):
    with pytest.raises(UsageError):
        tree(name)


def test_the_deepest_tree_is_read(written):
    assert tree(written(chain_of(MOST_NODES))).depth == MOST_NODES


NODES = st.sampled_from([x for x in ODD if isinstance(x, int | float | list)])


@BOUNDED
@given(st.lists(st.lists(st.integers(0, 3), max_size=5) | NODES, max_size=70))
def test_any_list_is_a_tree_or_refused(tmp_path_factory, paths):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(f"paths = {paths}".replace("True", "true").replace("False", "false"))
    returns_or_refuses(lambda: tree(str(path)))
