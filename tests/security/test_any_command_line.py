"""Random arguments for the real parser and the real commands, with fake models."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.app.cli import bench, calibrate, play, train
from specscope.traces.store import Store
from tests.security.commands import Models, command, is_one_line, use_models
from tests.traces.samples import sample_trace

WORDS = ("play", "run", "compare", "methods", "report", "export", "import", "bench", "calibrate", "nap")
VALID = (
    ("run", "--method", "pearl", "--prompt", "x"),
    ("run", "--method", "autoregressive", "--prompt-file", "prompts.jsonl"),
    ("compare", "--methods", "pearl", "--prompt-file", "prompts.jsonl"),
    ("export", "sample-speculative"),
    ("report", "sample-speculative"),
)
RUN = ("--method", "--methods", "--set", "--prompt", "--prompt-file", "--limit", "--system", "--head", "--no")
SAMPLING = ("--max-new-tokens", "--temperature", "--top-k", "--top-p", "--seed", "--stop")
PLACE = ("--runtime", "--profile", "--db", "--json", "--host", "--port", "--auth", "--unsafe", "--cuda")
FILES = ("--format", "--table", "-o", "--output", "--compared", "--redact-prompt", "--quick", "--drafters")
FLAGS = RUN + SAMPLING + PLACE + FILES
ODD = ("", "-1", "0", "3", "1e999", "nan", "9" * 5000, "x" * 5000, "\udcff", "a\nb", "%s{}", "--", "~nouser")
NAMES = ("pearl", "all", "pearl,dsi", "gamma=3", "pearl.gamma=3", "gamma=x", "sample-speculative", "csv")
PATHS = (
    "prompts.jsonl",
    "folder",
    "own.db",
    "/dev/zero",
    "/dev/null",
    "missing/x.html",
    "out.toml",
    "/proc/self/mem",
)


def test_any_arguments_give_an_exit_code_and_at_most_one_line_of_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECSCOPE_DB", str(tmp_path / "own.db"))
    use_models(monkeypatch, Models())
    monkeypatch.setattr(
        "specscope.app.busy.busy_since", lambda _: ""
    )  # a busy machine is a line on stderr, too
    for module in (play, train):
        monkeypatch.setattr(module, "run", lambda _: 0)
    for module in (bench, calibrate):
        monkeypatch.setattr(module, "run", lambda args, check=module._check: check(args) or 0)
    (tmp_path / "prompts.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n', encoding="utf-8")
    (tmp_path / "folder").mkdir()
    with Store(tmp_path / "own.db") as store:
        store.insert(sample_trace())
    texts = st.text(max_size=8).map(lambda text: text.replace("\0", ""))
    values = st.sampled_from(ODD + NAMES + PATHS) | texts
    options = (
        st.tuples(st.sampled_from(FLAGS), values) | st.tuples(values) | st.tuples(st.sampled_from(FLAGS))
    )
    starts = st.sampled_from(VALID) | st.tuples(st.sampled_from(WORDS)) | st.just(())

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(starts, st.lists(options, max_size=4))
    def attack(start, rest):
        done = command(*start, *(part for option in rest for part in option))
        assert done.code in (0, 1, 2), done
        assert (done.err != "") == (done.code != 0), done
        assert not done.err or is_one_line(done.err), done.err

    attack()
