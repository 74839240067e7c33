"""Every number of docs/parallel.md, computed again: from the stored map, the forms, and runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import ceil
from statistics import fmean

import pytest

from specscope.app.render.winners import map_svg
from specscope.app.tabs.winners import stored
from specscope.engine.methods import METHODS
from specscope.traces.facts.closed_forms import (
    block_speedup,
    dsi_blocks_speedup,
    layer_parallel_speedup,
    pearl_speedup,
    specbranch_speedup,
    speculative_speedup,
    ssd_speedup,
)
from specscope.traces.facts.metrics import measure, speedup
from specscope.traces.lab.forms import FORMS, MapPlace, best_settings
from specscope.traces.lab.plan import default
from specscope.traces.lab.sweep import ScriptedRunner, SweepRun
from specscope.traces.lab.winners import EQUAL, given_back, winner, with_target
from specscope.traces.papers import outside, parallel
from tests.docs.test_docs import ROOT

PAGE = (ROOT / "docs" / "parallel.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
PAPERS = " ".join((ROOT / "docs" / "papers.md").read_text(encoding="utf-8").split())
PLAN, RESULTS = stored()
PLACES = PLAN.places
AT = {(one.key, one.devices, one.c, one.rate): one for one in RESULTS}
PARALLEL = ("pearl", "ssd", "specbranch", "dsi", "easyspec")


def speeds(key: str, devices: int) -> list[float]:
    return [AT[key, devices, c, rate].speedup for c, rate in PLACES]


def best_dsi() -> list[float]:
    return [max(AT["dsi", n, c, rate].speedup for n in PLAN.devices) for c, rate in PLACES]


def leads(mine: list[float], theirs: list[float]) -> list[float]:
    return [a / b - 1 for a, b in zip(mine, theirs, strict=True)]


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def span(shares: list[float]) -> str:
    return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %".replace("-", "−")


# What the map says.


def on_two_devices() -> Iterator[str]:
    found = [winner(RESULTS, c, rate, 2) for c, rate in PLACES]
    first = Counter(one.best.key for one in found)
    others = [f"c = {one.best.c} and {one.best.rate:g}" for one in found if one.best.key == "easyspec"]
    over = {key: leads(speeds("ssd", 2), speeds(key, 2)) for key in ("pearl", "specbranch")}
    branch = leads(speeds("specbranch", 2), speeds("pearl", 2))
    yield f"fastest at {first['ssd']} of {len(PLACES)} places"
    yield f"EasySpec leads at {first['easyspec']}"
    yield f"({', '.join(others)})"
    yield f"{span(over['pearl'])} faster than PEARL, {percent(fmean(over['pearl']))} in the mean"
    yield f"gains {span(over['specbranch'])} over SpecBranch, {percent(fmean(over['specbranch']))} in the mean"
    yield f"SpecBranch is faster than PEARL at {sum(lead > 0 for lead in branch)} of {len(PLACES)} places, by {percent(fmean(branch))} in the mean"
    ssd = [one for one in found if one.best.key == "ssd"]
    yield f"its lead over the second is at least {percent(EQUAL)} at {sum(one.lead >= EQUAL for one in ssd)}"
    yield f"ahead for every seed at {sum(min(one.leads) > 0 for one in ssd)}"


def on_more_devices() -> Iterator[str]:
    near = leads(best_dsi(), speeds("ssd", 2))
    four = Counter(winner(RESULTS, c, rate, 4).best.key for c, rate in PLACES)
    yield f"less than 3 % apart at {sum(abs(lead) < 0.03 for lead in near)} of {len(PLACES)} places"
    yield f"DSI is ahead at {sum(lead > 0 for lead in near)}"
    yield f"EasySpec on four devices leads at {four['easyspec']}"


def per_device() -> Iterator[str]:
    for target in (1, 2, 4, 8):
        plan, found = with_target(PLAN, RESULTS, target)
        best = [winner(found, c, rate, max(plan.devices), "per device") for c, rate in PLACES]
        keys = Counter(one.best.key for one in best)
        if target == 1:
            assert keys == {"speculative": len(PLACES)}
            yield f"speculative decoding, at all places, by at least {percent(min(one.lead for one in best))}"
        cells = [str(keys[key] or "–") for key in ("speculative", "easyspec", "ssd")]
        assert sum(keys[key] for key in ("speculative", "easyspec", "ssd")) == len(PLACES)
        yield f"| {target} | {' | '.join(cells)} |"


def form_beside_run() -> Iterator[str]:
    shares = dict[str, float]()
    for key in ("speculative", *PARALLEL):
        mine = [one for one in RESULTS if one.key == key]
        shares[key] = sum(abs(one.speedup / one.form - 1) <= 0.05 for one in mine) / len(mine)
    yield f"speculative decoding and EasySpec are within 5 % of the forms at {100 * shares['speculative']:.0f} and {percent(shares['easyspec'])} of the places"
    yield f"those of PEARL at {percent(shares['pearl'])}, SSD at {percent(shares['ssd'])}, SpecBranch at {percent(shares['specbranch'])} and DSI at {percent(shares['dsi'])}"
    dsi = [one for one in RESULTS if one.key == "dsi"]
    yield f"DSI is {percent(1 - fmean(one.speedup / one.form for one in dsi))} slower than its form in the mean"


def best(form, rate: float, *costs: float) -> float:
    return max(form(rate, gamma, *costs) for gamma in range(1, 25))


def block() -> Iterator[str]:
    yield f"SSD has {listed([AT['ssd', 2, c, 0.8].speedup for c in PLAN.ratios])} at 0.8"
    yield f"at c = 20 and 0.98 it has {AT['ssd', 2, 20, 0.98].speedup:.2f}"


def listed(speeds: list[float]) -> str:
    *most, last = [f"{speed:.2f}" for speed in speeds]
    return f"{', '.join(most)} and {last}"


def misses() -> Iterator[str]:
    exponents = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 2)
    plain = {(c, rate): best(pearl_speedup, rate, c) for c, rate in PLACES}
    rows = {
        forks: [
            sum(best(ssd_speedup, rate, c, forks, r) <= plain[c, rate] for c, rate in PLACES)
            for r in exponents
        ]
        for forks in (3, 1)
    }
    yield f"| exponent of misses | {' | '.join(f'{r:g}' for r in exponents)} |"
    for forks, counts in rows.items():
        yield f"| PEARL is faster, F = {forks} | {' | '.join(str(count or '–') for count in counts)} |"
    at = [f"{best(ssd_speedup, 0.8, 12, 3, r):.2f}" for r in (0.2, 0.4, 0.7, 1, 2)]
    yield f"its best speed-up is {', '.join(at[:-1])} or {at[-1]} for an exponent of 0.2, 0.4, 0.7, 1 or 2"
    yield f"PEARL's is {best(pearl_speedup, 0.8, 12):.2f}, DSI's {dsi_blocks_speedup(0.8, 2, 12):.2f}, speculative decoding's {best(speculative_speedup, 0.8, 12):.2f}"


def split_target() -> Iterator[str]:
    for s in (1.2, 1.5, 2):
        ahead = [
            s * best(speculative_speedup, rate, c / s) >= best(ssd_speedup, rate, c) for c, rate in PLACES
        ]
        yield f"{sum(ahead)} of {len(PLACES)} places if two devices make it {s:g} times as fast"


def doubt() -> Iterator[str]:
    known = [f"{100 * (1 - (1 - PLAN.doubt) * rate):.0f}" for rate in (0.4, 0.8, 0.98)]
    yield f"{', '.join(known[:-1])} and {known[-1]} % of its errors at a = 0.4, 0.8 and 0.98"


def test_the_stored_map_has_the_usual_plan_with_five_seeds():
    usual = default()
    assert PLAN.seeds == 5
    assert (PLAN.methods, PLAN.places, PLAN.devices) == (usual.methods, usual.places, usual.devices)
    assert (PLAN.tokens, PLAN.doubt, PLAN.misses) == (usual.tokens, usual.doubt, usual.misses)
    assert f"{PLAN.tokens} tokens for each of {PLAN.seeds} seeds" in TEXT
    assert [len(one.speedups) for one in RESULTS if one.key == "specbranch"] == [5] * len(PLACES)
    for one in RESULTS:
        assert not one.speedups or fmean(one.speedups) == pytest.approx(one.speedup, abs=1e-3)


def test_the_pictures_are_those_of_the_stored_map():
    for name, by in (("parallel", "runs"), ("parallel-forms", "closed forms")):
        picture = (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
        assert picture == map_svg(PLAN, RESULTS, by), "write both pictures again from the stored map"


def test_each_method_has_its_best_settings_in_the_stored_map():
    for entrant, shares in PLAN.races:
        for c, rate in PLACES:
            given = {**entrant.given, **({entrant.share: shares} if entrant.share else {})}
            at, form = MapPlace(PLAN.profile, c, rate, PLAN.doubt, PLAN.misses), FORMS[entrant.form]
            one = AT[entrant.key, entrant.devices(shares, 1), c, rate]
            assert one.config == best_settings(form, at, given, entrant.search)
            assert one.form == pytest.approx(form(at, **one.config), abs=1e-4)


def test_a_blocks_runs_are_near_its_form():
    for later, _, _, speeds in table("| later places")[1:]:
        for c, speed in zip(PLAN.ratios, speeds.split(", "), strict=True):
            form = max(block_speedup((0.8, 0.8 * float(later)), gamma, c) for gamma in range(1, 16))
            assert float(speed) == pytest.approx(form, rel=0.08)


# The tables of runs.


def table(start: str) -> list[list[str]]:
    """Return the cells of the first table whose head begins so, its head first."""
    lines = PAGE[PAGE.index(start) :].splitlines()
    rows = lines[: next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [[cell.strip(" *") for cell in row.strip("|").split("|")] for i, row in enumerate(rows) if i != 1]


def recorded_text() -> Iterator[str]:
    head, *rows = table("| c | acceptance | SSD, 2 devices | PEARL")
    ssd, pearl = head.index("SSD, 2 devices"), head.index("PEARL, 2")
    numbers = [[float(cell) for cell in row] for row in rows]
    first = sum(row[ssd] >= max(row[2:]) for row in numbers)
    yield f"SSD is first in {first} of {len(rows)} cells"
    branch = sum(row[head.index("SpecBranch, 2")] > row[pearl] for row in numbers)
    yield f"SpecBranch is faster than PEARL in {branch}"
    yield f"{span([row[ssd] / row[pearl] - 1 for row in numbers])} faster than PEARL"


def published_cluster() -> dict[str, dict[str, str]]:
    """Return the cells of the published cluster's table, by row and column."""
    head, *rows = table("| acceptance | SSD | DSI")
    return {cells[0]: dict(zip(head, cells, strict=True)) for cells in rows}


def per_device_on_the_published_cluster() -> Iterator[str]:
    """Target on two devices: three for SSD, two for speculative decoding."""
    for rate in ("0.7", "0.95"):
        row = published_cluster()[f"{rate}, run"]
        yield f"at {rate} ({float(row['speculative']) / 2:.2f} to SSD's {float(row['SSD']) / 3:.2f})"


def test_the_published_clusters_closed_forms():
    c, longer = 87.57 / (1e3 / 36.5), 87.57 / (1e3 / 13)
    assert f"c = 87.6 / 27.4 = {c:.1f} and are divided by {longer:.2f}" in TEXT
    for rate in (0.7, 0.95):
        forms = {
            "SSD": best(ssd_speedup, rate, c),
            "DSI": 1 / ((1 - rate) * ceil(c) / c + rate / c),
            "SpecBranch": best_branches(rate, c),
            "PEARL": best(pearl_speedup, rate, c),
            "EasySpec": best(layer_parallel_speedup, rate, 1 / c, 14.82 / 87.57),
            "speculative": best(speculative_speedup, rate, c),
        }
        row = published_cluster()[f"{rate}, closed form"]
        assert {title: row[title] for title in forms} == {
            title: f"{value / longer:.2f}" for title, value in forms.items()
        }


def best_branches(rate: float, c: float) -> float:
    return max(
        specbranch_speedup(rate, gamma, c, length, 16, threshold, 0.5)
        for gamma in range(1, 9)
        for length in range(1, 5)
        for threshold in (rate, 0.0)
    )


def compared(profile: str, key: str, config: dict, rate: float, doubt: float = 0.0) -> list[float]:
    """Return the speed-ups of the seeds 0 to 4."""
    run, found = ScriptedRunner(profile, "", 128, doubt=doubt), list[float]()
    for seed in range(5):
        mine, plain = (
            run(SweepRun(k, given, seed, rate, "g")) for k, given in ((key, config), ("autoregressive", {}))
        )
        found.append(speedup(measure(mine), measure(plain)))
    return found


SETTINGS = re.compile(r"(\w+)\.(\w+)=([\d.]+)")


@pytest.mark.parametrize("rate", [0.7, 0.95])
def test_the_published_clusters_table_is_what_runs_give(rate: float):
    """With the settings of the command above it."""
    (command,) = re.findall(rf"^specscope compare .*bernoulli:{rate}:doubt=0.5.*$", PAGE, re.MULTILINE)
    row = published_cluster()[f"{rate}, run"]
    configs: dict[str, dict] = {key: {} for key in ("speculative", *PARALLEL)}
    for key, field, value in SETTINGS.findall(command):
        configs[key][field] = float(value) if "." in value else int(value)
    for key, config in configs.items():
        found = compared("8xA100", key, config, rate, 0.5)
        assert max(abs(one / fmean(found) - 1) for one in found) <= 0.11
        assert row[key if key == "speculative" else METHODS[key].title] == f"{fmean(found):.2f}", key


def test_ssds_cliff_is_what_runs_give():
    head, means, ranges = table("| γ | 1 | 2")
    for i, gamma in enumerate(head[1:], 1):
        found = compared("ssd-5xH100", "ssd", {"gamma": int(gamma)}, 0.8)
        assert means[i] == f"{fmean(found):.2f}"
        assert ranges[i] == f"{min(found):.2f} to {max(found):.2f}"


# The papers' sentences.


def inferred_rates() -> Iterator[str]:
    speeds = parallel.PAPER.numbers["SSD, speeds"]
    yield from (
        f"{parallel.rate_of_sd(speed, parallel.authors_verification()):.3f} for {data}"
        for data, speed in zip(speeds["columns"], speeds["SD"], strict=True)
    )
    yield "nothing below 4 is printed"


def below_4() -> Iterator[str]:
    assert min(int(gamma) for gamma in parallel.PAPER.numbers["SSD, reproduction"]["columns"]) == 4
    rate, ms = parallel.rate_of_reproduction(), 11.45
    faster = parallel.ssd_speed(rate, 3, ms) / parallel.ssd_speed(rate, 4, ms) - 1
    yield f"γ = 3 is {100 * faster:.1f} % faster than 4; nothing below 4 is printed"


def the_cliffs_seeds() -> Iterator[str]:
    rows = {row.row[6]: row for row in parallel.PAPER.rows_of("SSD, virtual cluster")}
    assert {len(speeds) for speeds in parallel.PAPER.numbers["SSD, virtual cluster"]["speeds"].values()} == {
        8
    }
    near, high = 100 * abs(rows["5"].difference), 100 * rows["7"].difference
    yield f"5 to 4 within {near:.1f} % and that of 7 to 4 {high:.0f} % too high"
    yield f"{rows['7'].ours:.3f}"
    for gamma in "57":
        found = re.search(r"a single one is ([\d.]+ to [\d.]*\d)", rows[gamma].assumption)
        assert found
        yield found[1]
    yield f"γ = 3 is {100 * (1 - rows['3'].ours):.1f} % slower than 4"


def spec_bench() -> Iterator[str]:
    assert "2025-04-22" in outside.PAPER.title
    yield "Leaderboard of 2025-04-22"
    misses = list[float]()
    for item in ("Spec-Bench, A100", "Spec-Bench, RTX 3090"):
        rows = [row for row in outside.PAPER.rows_of(item) if row.predicted]
        costs = [row for row in rows if "profile" not in row.row]
        yield f"({sum(row.hit for row in costs)} of {len(costs)}"
        misses += [row.difference for row in rows if "profile" in row.row and not row.hit]
    yield f"are {span(misses)} too fast"


MAP = (on_two_devices, on_more_devices, per_device, form_beside_run, block, misses, split_target, doubt)
RUNS = (recorded_text, per_device_on_the_published_cluster, inferred_rates)
CLAIMS = [
    *(("parallel", claims) for claims in (*MAP, *RUNS)),
    *(("papers", claims) for claims in (inferred_rates, below_4, the_cliffs_seeds, spec_bench)),
]


@pytest.mark.parametrize(("page", "claims"), CLAIMS, ids=lambda part: getattr(part, "__name__", part))
def test_the_page_says(page, claims):
    """What the map, the forms, the runs and the papers say."""
    text = TEXT if page == "parallel" else PAPERS
    missing = [claim for claim in claims() if claim not in text]
    assert not missing, "\n".join(missing)


def test_ssds_rows_name_the_inferred_rate():
    speeds = parallel.PAPER.numbers["SSD, speeds"]
    rows = {row.row: row for row in parallel.PAPER.rows_of("SSD, speeds") if row.predicted}
    for data, speed in zip(speeds["columns"], speeds["SD"], strict=True):
        rate = f"here {parallel.rate_of_sd(speed, parallel.authors_verification()):.3f}, "
        assert rate in rows[f"SSD, {data}, tokens/s"].assumption


def test_methods_with_schedules_are_named():
    readme = " ".join((ROOT / "docs" / "methods" / "README.md").read_text(encoding="utf-8").split())
    keys = [key for key in METHODS if any(s.name == "off_below" for s in METHODS[key].settings())]
    for key in keys:
        assert f"`{key}`" in readme[readme.index("## Schedules of draft lengths") :][:300], key


def test_a_map_with_means_only_is_given_back():
    plan = {name: getattr(PLAN, name) for name in PLAN.__slots__}
    plan["methods"] = [entrant._asdict() for entrant in PLAN.methods]
    one = RESULTS[0].facts() | {"speedups": []}
    _, (found,) = given_back({"plan": plan, "results": [one]})
    assert (found.speedup, found.speedups) == (one["speedup"], ())
