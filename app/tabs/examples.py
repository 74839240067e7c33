"""The finished examples of the Lab, the Load and the Advise tab.

`python -m specscope.app.tabs.examples` makes them again. The files `lab.json`, `load.json` and
`advise.json` of `assets/examples` have the settings with which the tabs open, and what a press of
their button gives. All are of virtual clusters, so every machine gets the same figures. They are
files because making them takes a minute.
"""

from __future__ import annotations

import json
import sys

from specscope.app.jobs.service import Service
from specscope.app.tabs import advise, lab, load
from specscope.app.tabs.settings import FOLDER, read


def record() -> None:
    service = Service(None)
    try:
        for name, make in (
            ("lab", lab.make_example),
            ("load", load.make_example),
            ("advise", advise.make_example),
        ):
            file, found = FOLDER / f"{name}.json", {"settings": read(name)["settings"], **make(service)}
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            sys.stdout.write(f"{file.name}: {file.stat().st_size:,} bytes\n")
    finally:
        service.close()


if __name__ == "__main__":
    record()
