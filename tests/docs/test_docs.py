"""The documents agree with the code: tables, commands, links and the README's Python session."""

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
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import pytest

import specscope
from specscope.app.cli import COMMANDS
from specscope.app.cli.options import add_options
from specscope.app.command import build_parser
from specscope.engine.methods import METHODS, Setting
from specscope.engine.trace import events
from specscope.engine.trace.jsonl import read_jsonl
from specscope.engine.training.data import SOURCES
from specscope.traces.database import schema
from specscope.traces.database.store import Store
from specscope.traces.facts import waiting
from specscope.traces.facts.definitions import FIGURES
from specscope.traces.facts.metrics import Metrics
from tests.docs import picture
from tests.engine.test_rooms import graph
from tests.traces.samples import sample_trace

ROOT = Path(__file__).resolve().parents[2]
README, METRICS_MD, TRACES_MD = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "docs/methods/metrics.md", "docs/traces.md")
)
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "methods").glob("*.md")}
"""The pages of the methods, and those that they share."""
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MAX_LINES = {
    "README.md": 113 + len(COMMANDS) + len(METHODS),
    "ARCHITECTURE.md": 120,
    "CONTRIBUTING.md": 157,
} | {f"docs/{page}": 250 for page in ("devices.md", *(f"methods/{name}.md" for name in PAGES))}
MAX_ARCHITECTURE_WORDS = 900
EVENTS = {kind.tag: kind for kind in (events.Header, *events.KINDS, events.Footer)}


def section(text: str, title: str, level: str = "##") -> str:
    """Return the text between a heading and the next one of its level or above."""
    match = re.search(
        rf"^{level} {re.escape(title)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert match, f"there is no section '{level} {title}'"
    return match[1]


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def first_cells(text: str) -> list[str]:
    """Return the names in backticks in the first column of the tables."""
    rows = re.findall(r"^\|([^|\n]*)\|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def project_files() -> list[Path]:
    """Return the project's files, without those that git ignores."""
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    ignored = [".git", *(line.strip("/") for line in lines)]

    def walk(folder: Path) -> list[Path]:
        kept = [p for p in folder.iterdir() if not any(fnmatch(p.name, pattern) for pattern in ignored)]
        return [f for p in kept for f in (walk(p) if p.is_dir() else [p])]

    return walk(ROOT)


# Methods: the registry, the files, README.md and docs/methods/ agree.


def test_every_method_file_has_a_row_and_a_page():
    files = {f.stem for f in (ROOT / "engine/methods").glob("*.py")} - {"__init__", "registry", "common"}
    assert files == set(METHODS)
    assert first_cells(section(README, "Methods")) == sorted(files)
    assert set(PAGES) == files | {"README", "metrics"}
    assert set(first_cells(PAGES["README"].partition("\n## ")[0])) == files
    assert f"runs {len(files)} of them" in README


@pytest.mark.parametrize("key", METHODS)
def test_the_readmes_row_agrees_with_the_registry(key):
    method, path = METHODS[key], f"engine/methods/{key}.py"
    lossy = [f"not with `{s.name}={choice}`" for s in method.settings() for choice in s.lossy]
    lossless = ", ".join(["yes", *lossy])
    row = f"| `{key}` | {method.title} | {method.source} | {lossless} | [{path}]({path}) |"
    assert row in README.splitlines(), f"README.md needs the row\n{row}"


def setting_row(s: Setting) -> str:
    """Return the row of one field in the page of its method."""
    bounds = f"{s.low:g} to {s.high:g}" if s.low is not None and s.high is not None else ""
    bounds = f"up to {s.high:,} characters" if s.free_text and s.high else bounds
    choices = [f"{c} (lossy)" if c in s.lossy else c for c in s.choices]
    allowed = ", ".join(choices) or ("on, off" if s.type is bool else bounds)
    default = s.default if s.default != "" else '""'
    return f"| `{s.name}` | `{default}` | {allowed}{', or 0' if s.auto else ''} | {s.doc} |"


@pytest.mark.parametrize("key", METHODS)
def test_every_setting_is_in_its_methods_page(key):
    text = PAGES[key]
    rows = [setting_row(s) for s in METHODS[key].settings()]
    table = [line for line in text.splitlines() if line.startswith("| `")]
    assert table == rows, f"docs/methods/{key}.md needs the rows\n" + "\n".join(rows)
    assert rows or "**Settings.** None." in text


QUESTIONS = (
    *("Source", "What it does", "Settings", "Rule"),
    *("Left out or decided", "What its trace shows", "How it is proved"),
)


@pytest.mark.parametrize("key", METHODS)
def test_every_page_answers_the_same_questions(key):
    text = PAGES[key]
    for title in QUESTIONS:
        assert f"**{title}.**" in text, title
    assert f"`engine/methods/{key}.py`" in text
    assert re.search(r"^    while not done:", text, re.MULTILINE), "the loop in pseudo-code"


def test_every_metric_is_defined_as_the_code_defines_it():
    rows = [f"| `{f.name}` | {FIGURES[f.name].definition} |" for f in fields(Metrics)]
    table = [line for line in METRICS_MD.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert table == rows, "docs/methods/metrics.md needs the rows\n" + "\n".join(rows)


# Traces: fields, codes, reasons and working examples.


@pytest.mark.parametrize("tag", EVENTS)
def test_every_field_of_a_row_is_described(tag):
    expected = [f.name for f in fields(EVENTS[tag])]
    assert first_cells(section(TRACES_MD, tag, "###")) == expected


def test_every_kind_of_span_and_every_reason_to_wait_is_described():
    kinds = section(TRACES_MD, "span", "###").partition("Kinds:")[2]
    assert set(get_args(events.SpanKind)) <= set(re.findall(r"`([^`]+)`", kinds))
    assert first_cells(section(TRACES_MD, "Waiting")) == list(get_args(waiting.Reason))


def test_the_databases_tables_and_codes_are_described():
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


def test_the_sql_example_sums_the_spans_of_a_run(tmp_path):
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
    """Parse arguments as the command would; fail with its error."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return build_parser().parse_args(arguments)
    except SystemExit:
        pytest.fail(f"specscope {shlex.join(arguments)}: {errors.getvalue()}")


def test_the_readme_shows_every_command():
    assert {arguments[0] for arguments in command_lines(README)} == set(COMMANDS)


def test_the_readmes_session_runs(capsys, monkeypatch):
    """On threads, which start faster; tests of the runtimes start worker processes."""
    (session,) = blocks(README, "python")
    monkeypatch.setattr(
        specscope, "open", partial(specscope.open, runtime="local-thread", device="cpu"), raising=False
    )
    assert len([line for line in session.splitlines() if line.strip()]) == 6
    names: dict[str, Any] = {}
    exec(compile(session, "README.md", "exec"), names)  # the text of the README
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


TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_commands_files_and_make_targets_of_a_document_exist(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for link in (link for link in links if not link.startswith("https://")):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link
    for arguments in command_lines(text):
        assert parse(arguments).command is COMMANDS[arguments[0]].run
    for command in re.findall(r"`specscope ([^`]+)`", text):
        word, *rest = shlex.split(command)
        known = argparse.ArgumentParser()
        add_options(known, *COMMANDS[word].OPTIONS)
        for group in known._actions:  # a command such as train has commands of its own
            if rest and group.nargs == argparse.PARSER:
                known = (group.choices or {}).get(rest[0], known)
        assert {option for option in rest if option.startswith("-")} <= set(known._option_string_actions)
    top = "|".join(re.escape(p.name) for p in top_folders())
    for path in re.findall(rf"`((?:{top})/[^`\s<>]*)`", text):
        assert list(ROOT.glob(path.rstrip("/"))), path
    assert set(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE)) <= TARGETS


@cache
def top_folders() -> list[Path]:
    """Return the project's top folders."""
    return sorted({ROOT / f.relative_to(ROOT).parts[0] for f in project_files() if f.parent != ROOT})


def test_the_readme_lists_all_folders():
    (tree,) = blocks(section(README, "Folders"), "text")
    lines = re.findall(r"^([\w.]+)/ +\S.*$", tree, re.MULTILINE)
    assert len(lines) == len(tree.splitlines()), "a line per folder, each with a description"
    assert lines == [folder.name for folder in top_folders()]


def test_no_file_contains_an_absolute_path_of_a_machine():
    homes = r"(?<![\w.~}\]/*-])/(?:home|Users|root|work|workspaces?|mnt|scratch)/[\w.]"
    patterns = [homes, *([re.escape(str(ROOT)) + r"\b"] if len(ROOT.parts) > 2 else [])]
    for file in project_files():
        content = file.read_bytes()
        if b"\0" not in content and file != Path(__file__).resolve():
            path = re.search("|".join(patterns), content.decode("utf-8"))
            assert not path, (str(file.relative_to(ROOT)), path[0] if path else "")


def test_the_changelog_begins_with_the_packages_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    first = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first
    assert first[1] == version


def test_the_readme_names_the_licence_of_every_training_text():
    licences = {part.strip() for source in SOURCES.values() for part in source.licence.split(",")}
    text = section(README, "Licence and data")
    assert not [name for name in licences if name.replace(" (US)", "") not in text]


@pytest.mark.parametrize(("name", "lines"), MAX_LINES.items())
def test_documents_stay_short(name, lines):
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= lines


def test_the_architecture_is_short_and_its_picture_up_to_date():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.split()) <= MAX_ARCHITECTURE_WORDS
    assert len(re.findall(r"!\[", text)) == 1
    drawn = picture.PICTURE.read_text(encoding="utf-8")
    assert drawn == picture.draw(), "run `python -m tests.docs.picture`"


def test_the_picture_has_every_import_between_rooms():
    """An arrow, or several in a row, for each import; and no arrow without an import."""
    arrows = picture.arrows()
    reached = {name: {name} for name in picture.ROWS}
    for upper, lower in reversed(arrows):
        reached[upper] |= reached[lower]
    imports = {
        (picture.row_of(module), picture.row_of(other))
        for module, imported in graph().items()
        for other in imported
    }
    assert all(lower in reached[upper] for upper, lower in imports)
    assert set(arrows) <= imports
    lanes = picture.lanes(arrows)
    assert len(set(lanes)) == len(arrows)
