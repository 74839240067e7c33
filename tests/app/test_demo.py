"""The race on the first page: its files, and its document."""

from __future__ import annotations

import json

from specscope.app.demo import FOLDER, MOST_BYTES, demo_document, files, plan
from specscope.engine.methods import METHODS


def test_the_files_are_small_and_name_no_folder_of_a_machine() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= MOST_BYTES
    assert sorted(file.name for file in FOLDER.iterdir()) == sorted(["demo.json", *(f.name for f in files())])
    document = demo_document()
    assert not any(f'"{folder}' in document for folder in ("/root", "/home", "/tmp", "/usr"))


def test_three_methods_answer_the_prompt_with_the_same_text_and_a_sentence_each() -> None:
    document, wanted = json.loads(demo_document()), plan()
    runs = document["model"]["runs"]
    assert [run["title"] for run in runs] == [METHODS[r["method"]].title for r in wanted["runs"]]
    assert len(runs) == len(document["looks"]) == 3
    assert all(look.endswith(".") for look in document["looks"])
    assert {run["prompts"][0] for run in runs} == {wanted["prompt"]}
    assert [run["status"] for run in runs] == ["done"] * 3
    assert runs[0]["baseline"]
    assert all(run["identity"]["same"] for run in runs[1:])
    assert all(run["over"] == runs[0]["id"] for run in runs)
