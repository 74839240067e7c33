"""The documents say what the code says: tables, commands, links and the README's Python session."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import sqlite3
import tomllib
from dataclasses import fields
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

import engine
from app.cli import COMMANDS
from app.main import build_parser
from engine.methods import METHODS, Setting
from engine.trace import events
from engine.trace.jsonl import read_jsonl
from engine.training.data import SOURCES
from tests.traces.samples import sample_trace
from traces import schema, waiting
from traces.definitions import DEFINITIONS
from traces.metrics import Metrics
from traces.store import Store

ROOT = Path(__file__).resolve().parents[2]
README, METHODS_MD, TRACES_MD = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/methods.md", "docs/traces.md")
)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LONGEST = {"README.md": 150, "ARCHITECTURE.md": 120, "CONTRIBUTING.md": 40}
EVENTS = {kind.tag: kind for kind in (events.Header, *get_args(events.Row), events.Footer)}


def section(text: str, title: str, level: str = "##") -> str:
    """Return what stands between a heading and the next one of its level or above."""
    found = re.search(
        rf"^{level} {re.escape(title)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found, f"there is no section '{level} {title}'"
    return found[1]


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def first_cells(text: str) -> list[str]:
    """Return the names in backticks in the first column of the tables."""
    rows = re.findall(r"^\|([^|\n]*)\|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def ignored_names() -> list[str]:
    """Return the patterns of .gitignore, without their slashes."""
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    return [line.strip("/") for line in lines]


def project_files() -> list[Path]:
    """Return the project's files: what git would keep."""
    ignored = [*ignored_names(), ".git"]

    def walk(folder: Path) -> list[Path]:
        kept = [p for p in folder.iterdir() if not any(fnmatch(p.name, pattern) for pattern in ignored)]
        return [f for p in kept for f in (walk(p) if p.is_dir() else [p])]

    return walk(ROOT)


# Methods: rows = registry = files.


def test_every_file_is_a_method_and_has_its_row_and_section():
    files = {f.stem for f in (ROOT / "engine/methods").glob("*.py")} - {"__init__", "registry", "common"}
    assert files == set(METHODS)
    assert first_cells(section(README, "Methods")) == sorted(files)
    for key in files:
        assert section(METHODS_MD, key).strip()


@pytest.mark.parametrize("key", METHODS)
def test_the_readmes_row_is_what_the_registry_says(key):
    method, path = METHODS[key], f"engine/methods/{key}.py"
    lossy = [f"not with `{s.name}={choice}`" for s in method.settings() for choice in s.lossy]
    lossless = ", ".join(["yes", *lossy])
    row = f"| `{key}` | {method.title} | {method.source} | {lossless} | [{path}]({path}) |"
    assert row in README.splitlines(), f"README.md needs the row\n{row}"


def setting_row(s: Setting) -> str:
    """Return the row of one field in docs/methods.md."""
    bounds = f"{s.low:g} to {s.high:g}" if s.low is not None and s.high is not None else ""
    bounds = f"up to {s.high:,} characters" if s.free_text and s.high else bounds
    choices = [f"{c} (lossy)" if c in s.lossy else c for c in s.choices]
    allowed = ", ".join(choices) or ("on, off" if s.type is bool else bounds)
    default = s.default if s.default != "" else '""'
    return f"| `{s.name}` | `{default}` | {allowed}{', or 0' if s.auto else ''} | {s.doc} |"


@pytest.mark.parametrize("key", METHODS)
def test_every_setting_stands_in_its_methods_section(key):
    text = section(METHODS_MD, key)
    rows = [setting_row(s) for s in METHODS[key].settings()]
    table = [line for line in text.splitlines() if line.startswith("| `")]
    assert table == rows, f"docs/methods.md, section {key}, needs the rows\n" + "\n".join(rows)
    assert rows or "**Settings.** None." in text


@pytest.mark.parametrize("key", METHODS)
def test_every_section_answers_the_same_questions(key):
    text = section(METHODS_MD, key)
    for title in (
        "Source",
        "What it does",
        "Settings",
        "Rule",
        "Left out or decided",
        "What its trace shows",
        "How it is proved",
    ):
        assert f"**{title}.**" in text, title
    assert f"`engine/methods/{key}.py`" in text
    assert re.search(r"^    while not done:", text, re.MULTILINE), "the loop in pseudo-code"


def test_every_metric_is_defined_as_the_code_defines_it():
    assert {f.name for f in fields(Metrics)} <= set(DEFINITIONS)
    rows = [f"| `{key}` | {text} |" for key, text in DEFINITIONS.items()]
    table = [line for line in section(METHODS_MD, "Metrics").splitlines() if line.startswith("| `")]
    assert table == rows, "docs/methods.md, section Metrics, needs the rows\n" + "\n".join(rows)


# Traces: fields, codes, reasons, and examples that work.


@pytest.mark.parametrize("tag", EVENTS)
def test_every_field_of_a_row_is_described(tag):
    expected = [f.name for f in fields(EVENTS[tag])]
    assert first_cells(section(TRACES_MD, tag, "###")) == expected


def test_every_kind_of_span_and_every_reason_to_wait_is_described():
    kinds = section(TRACES_MD, "span", "###").partition("Kinds:")[2]
    assert set(get_args(events.SpanKind)) <= set(re.findall(r"`([^`]+)`", kinds))
    assert first_cells(section(TRACES_MD, "Waiting")) == list(get_args(waiting.Reason))


def test_tables_and_codes_are_those_of_the_database():
    text = section(TRACES_MD, "The database")
    tables = {"run", *(table.name for table in schema.ROWS.values())}
    coded = {
        f"{table.name}.{column.name}": column.type.names
        for table in (schema.RUN, *schema.ROWS.values())
        for column in table.c
        if isinstance(column.type, schema.Code)
    }
    names = first_cells(text)
    assert {n for n in names if "." not in n} == tables
    assert {n for n in names if "." in n} == set(coded)
    for name, codes in coded.items():
        row = next(line for line in text.splitlines() if line.startswith("|") and f"`{name}`" in line)
        assert row.endswith(f"| {', '.join(code or '(empty)' for code in codes)} |"), name


def test_the_jsonl_example_is_a_trace():
    (example,) = blocks(TRACES_MD, "json")
    trace = read_jsonl(example.splitlines())
    assert trace.text == trace.footer.texts[0] == "Hi"
    assert (len(trace.spans), len(trace.decisions), len(trace.commits), len(trace.rounds)) == (2, 1, 1, 1)


def test_the_sql_example_sums_up_a_run(tmp_path):
    (query,) = blocks(TRACES_MD, "sql")
    trace = sample_trace("speculative")
    with Store(tmp_path / "traces.db") as store:
        store.insert(trace)
    with contextlib.closing(sqlite3.connect(tmp_path / "traces.db")) as connection:
        rows = connection.execute(query).fetchall()
    assert sum(row[2] for row in rows) == len(trace.spans)
    assert sum(row[3] for row in rows) == pytest.approx(sum(s.end - s.start for s in trace.spans) / 1e6)


# The command line.


def command_lines(text: str) -> list[list[str]]:
    """Return the arguments of every `specscope ...` line in the fenced blocks."""
    lines = (line for block in blocks(text, r"\w*") for line in block.splitlines())
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("specscope")]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse as the command would; say why it cannot."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return build_parser().parse_args(arguments)
    except SystemExit:
        pytest.fail(f"specscope {shlex.join(arguments)}: {complaint.getvalue()}")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_every_command_in_a_document_parses(document):
    for arguments in command_lines(document.read_text(encoding="utf-8")):
        assert parse(arguments).command is COMMANDS[arguments[0]].run


def test_the_readme_shows_every_command():
    assert {arguments[0] for arguments in command_lines(README)} == set(COMMANDS)


def test_commands_named_in_passing_exist():
    """`specscope word --option` in running text: the word and the options are real."""
    for document in DOCUMENTS:
        for text in re.findall(r"`specscope ([^`]+)`", document.read_text(encoding="utf-8")):
            word, *rest = shlex.split(text)
            assert word in COMMANDS, (document.name, text)
            known = argparse.ArgumentParser()
            COMMANDS[word].add_arguments(known)
            for option in (o for o in rest if o.startswith("-")):
                assert option in known._option_string_actions, (document.name, text)


def test_make_targets_named_in_the_documents_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for document in DOCUMENTS:
        for target in re.findall(r"(?:`|^)make ([a-z]+)", document.read_text(encoding="utf-8"), re.MULTILINE):
            assert target in targets, (document.name, target)


# The README's Python session.


def test_the_readmes_session_runs(capsys, monkeypatch):
    """On threads: two processes that load PyTorch take longest here, and the runtimes' contract tests start them anyway."""
    (session,) = blocks(README, "python")
    monkeypatch.setattr(
        engine, "open", partial(engine.open, runtime="local-thread", device="cpu"), raising=False
    )
    assert len([line for line in session.splitlines() if line.strip()]) == 6
    names: dict[str, Any] = {}
    exec(compile(session, "README.md", "exec"), names)  # the README's own text
    trace, printed = names["trace"], capsys.readouterr().out
    assert trace.status == "done"
    assert printed.startswith(trace.text + "\n")
    assert len(trace.text) > 20
    assert re.search(r"\d+% of decoding\n\Z", printed)


# Links, paths, folders, versions.


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives the headings."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_and_pictures_lead_somewhere_in_the_project(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for link in (link for link in links if not link.startswith("https://")):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_files_named_in_the_text_exist(document):
    text = document.read_text(encoding="utf-8")
    top = "|".join(re.escape(p.name) for p in top_folders())
    for path in re.findall(rf"`((?:{top})/[^`\s<>]*)`", text):
        assert list(ROOT.glob(path.rstrip("/"))), (document.name, path)


def top_folders() -> list[Path]:
    """Return the project's folders at the top."""
    return sorted({ROOT / f.relative_to(ROOT).parts[0] for f in project_files() if f.parent != ROOT})


def test_the_folder_tree_is_the_real_one():
    (tree,) = blocks(section(README, "What is where"), "text")
    lines = re.findall(r"^( *)([\w.]+)/ +(\S.*)$", tree, re.MULTILINE)
    assert len(lines) == len(tree.splitlines()), "a line per folder, each with a description"
    tops = [name for indent, name, _ in lines if not indent]
    assert tops == [p.name for p in top_folders()]
    parent = ""
    for indent, name, _ in lines:
        parent = parent if indent else name
        assert (ROOT / parent / name if indent else ROOT / name).is_dir(), name


def test_every_package_of_the_sources_is_in_the_folder_tree():
    (tree,) = blocks(section(README, "What is where"), "text")
    shown = set(re.findall(r"^ +([\w.]+)/", tree, re.MULTILINE))
    folders = {
        f.parent.name for top in ("app", "engine", "traces") for f in (ROOT / top).glob("*/__init__.py")
    }
    assert shown == folders


def test_no_file_holds_an_absolute_path_of_a_machine():
    homes = r"(?<![\w.~}\]/*-])/(?:home|Users|root|work|workspaces?|mnt|scratch)/[\w.]"
    patterns = [homes, *([re.escape(str(ROOT)) + r"\b"] if len(ROOT.parts) > 2 else [])]
    for file in project_files():
        content = file.read_bytes()
        if b"\0" not in content and file != Path(__file__).resolve():
            found = re.search("|".join(patterns), content.decode("utf-8"))
            assert not found, (str(file.relative_to(ROOT)), found[0] if found else "")


def test_the_changelog_begins_with_the_version_of_the_package():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    first = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first
    assert first[1] == version


def test_the_readme_names_the_licence_of_every_training_text():
    licences = {part.strip() for source in SOURCES.values() for part in source.licence.split(",")}
    text = section(README, "Licence and data")
    assert not [name for name in licences if name.replace(" (US)", "") not in text]


@pytest.mark.parametrize(("name", "lines"), LONGEST.items())
def test_documents_stay_short(name, lines):
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= lines
