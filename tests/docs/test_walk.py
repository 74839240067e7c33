"""The walk of ARCHITECTURE.md, "From a prompt to a trace", is the one that a run takes."""

import re
import sys
import threading
from pathlib import Path

from specscope.app.main import main

ROOT = Path(__file__).parents[2]
MOST_FILES = 27


def test_a_prompt_becomes_a_token_in_the_files_of_the_walk(tmp_path, capsys):
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text[text.index("| step |") : text.index("## Seams")]
    walk = set(re.findall(r"`((?:app|engine)/[\w/]+\.py)`", table))
    assert f"a prompt becomes a token in {len(walk)} files" in " ".join(text.split())
    assert len(walk) <= MOST_FILES
    entered = set[str]()

    def enter(frame, event, _):
        if event == "call" and frame.f_code.co_name != "<module>":
            entered.add(frame.f_code.co_filename)

    options = (
        "--method",
        "speculative",
        "--pair",
        "bundled",
        "--runtime",
        "local-thread",
        "--max-new-tokens",
        "8",
    )
    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        assert main(["run", "--prompt", "Once upon a time", *options, "--db", str(tmp_path / "a.db")]) == 0
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    folders = {str(Path(name).resolve()).removeprefix(f"{ROOT}/") for name in entered}
    assert walk <= folders, walk - folders
