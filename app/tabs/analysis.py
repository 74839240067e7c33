"""The analysis below open runs: difference of two runs, what-if of one, acceptance of all.

Of several open runs, the page offers a choice of the runs of a difference and of a what-if.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specscope.app.jobs.service import Service
from specscope.app.jobs.stored import find_traces, store_of
from specscope.app.render.analysis import LONGEST, acceptance_table, chart, difference, what_if_result
from specscope.app.render.html import alert, name_of, note
from specscope.app.tabs.requests import at, check_profile
from specscope.app.tabs.settings import Controls, asked, check, row
from specscope.app.tabs.wiring import (
    CHARTS,
    QUIET,
    SMALL,
    Update,
    build_message,
    build_viewer,
    plain_html,
    viewed,
)
from specscope.engine.errors import SpecScopeError, UsageError, shown
from specscope.engine.methods import METHODS
from specscope.engine.simulate.profile import Profile, profiles
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.comparable import comparisons
from specscope.traces.facts.imported import is_timed
from specscope.traces.facts.metrics import measure
from specscope.traces.judge.diff import diff
from specscope.traces.whatif.own_times import own_times

OWN = "The run's own"
"""Choice of a method that keeps the recorded one."""
OWN_TIMES = "The run's own times"
"""Choice of a cluster: what the forwards of a measured run took."""
MOST_C = 1000
"""Largest c of the chart; the slider ends at the run's own c, or at `USUAL_C`."""
USUAL_C = 40


@dataclass(frozen=True, slots=True)
class WhatIfSettings:
    """The values of the what-if's controls."""

    run: str | None = asked("Run", choices=list, default=None, visible=False)
    method: str = asked(
        "Method", choices=lambda: [(OWN, ""), *((m.title, key) for key, m in METHODS.items())]
    )
    profile: str = asked("Cluster", choices=profiles)
    pair: str = asked("Modelled pair", choices=lambda: _pairs(""))
    devices: int = asked("Devices (0: all)", default=0)
    settings: str = asked("Settings", placeholder="gamma=6, pre_verify=off")

    def __post_init__(self) -> None:
        check(self, "whatif")


class Analysis:
    """The components and their event handlers."""

    def __init__(self, service: Service) -> None:
        self.service = service
        made = self.made = Controls("whatif", WhatIfSettings(profile=profiles()[0]))
        with gr.Column(elem_id="difference", elem_classes="app-card", visible=False) as self.second:
            gr.HTML("<h2>Difference</h2>")
            with gr.Row(elem_classes="app-whatif", visible=False) as self.chosen:
                self.pair_of_runs = [gr.Dropdown([], label=label) for label in ("First run", "Second run")]
            self.diff = plain_html(js_on_load=CHARTS)
        with gr.Column(elem_id="whatif", elem_classes="app-card", visible=False) as self.card:
            gr.HTML("<h2>What-if</h2>")
            self._build_replay()
            self._build_chart()
        with gr.Column(elem_id="acceptance", elem_classes="app-card") as self.third:
            gr.HTML("<h2>Acceptance by definition</h2>")
            self.acceptance = plain_html()
        self.cards = [self.card, self.second, self.third]
        self.sliders = [self.rate, self.gamma, self.c]
        self.run = made["run"]
        self.controls = [
            *(made[name] for name in ("method", "profile", "pair", "settings", "devices")),
            *(self.message, self.result, self.viewer, self.keep, self.kept),
            *(self.chart, *self.sliders),
        ]
        """What belongs to the run of the what-if."""
        self.shown = [
            *(self.run, *self.controls, *self.cards, self.chosen, *self.pair_of_runs),
            *(self.diff, self.acceptance),
        ]
        self._connect()

    def _build_replay(self) -> None:
        gr.HTML(
            note(
                "The recorded drafts and decisions, replayed on a virtual cluster, or with a measured run's own times."
            )
        )
        with row():
            self.made.add("run", "method", "profile", "pair", "devices", "settings")
            self.replay = gr.Button("Replay", variant="primary", elem_id="whatif-replay", **SMALL)
        self.message = build_message("whatif-message")
        self.result = plain_html(elem_id="whatif-result")
        self.viewer = build_viewer("whatif-viewer")
        self.kept = gr.Textbox("", visible=False)
        """Ids of the shown replay and its plain decoding."""
        self.keep = gr.Button("Store the replay", visible=False, elem_id="whatif-keep", **SMALL)

    def _build_chart(self) -> None:
        gr.HTML(
            "<h3>Expected speed-up over plain decoding</h3>"
            + note(
                "Closed forms of the papers at this run's acceptance, gamma and c: acceptances are independent, a "
                "wide forward takes as long as a narrow one, and nothing else takes time. Plans and advice count "
                "both, so they predict less."
            )
        )
        with gr.Row(elem_classes="app-sliders"):
            self.rate = gr.Slider(0, 1, 0.8, step=0.01, label="Acceptance")
            self.gamma = gr.Slider(1, LONGEST, 4, step=1, label="gamma")
            about = (
                "Median verification / median draft forward, as in Figures; without drafts, the cluster's."
            )
            self.c = gr.Slider(1, USUAL_C, 4, step=0.01, label="drafter speed, c", info=about)
        self.chart = plain_html(elem_id="whatif-chart", js_on_load=CHARTS)

    def _connect(self) -> None:
        for slider in self.sliders:
            slider.input(draw, self.sliders, self.chart, trigger_mode="always_last", **QUIET)
        made = self.made
        made["profile"].input(pairs_of, made["profile"], made["pair"], **QUIET)
        shown = [self.message, self.result, self.viewer, self.keep, self.kept]
        seen: dict[str, Any] = {**QUIET, "show_progress": "minimal"}
        started = [self.replay.click, made["settings"].submit]
        gr.on(started, self.show_replay, made.inputs, shown, **seen)
        self.run.input(self.choose, self.run, self.controls, **QUIET)
        for run in self.pair_of_runs:
            run.input(self.compare, self.pair_of_runs, self.diff, **QUIET)
        self.keep.click(self.store_replay, self.kept, [self.message, self.keep], **QUIET)

    def show(self, traces: Sequence[Trace]) -> Update:
        names = _names(traces)
        ended = [(name, t) for name, t in zip(names, traces, strict=True) if t.footer is not None]
        timed = [(name, t) for name, t in ended if is_timed(t.header)]
        several = {"choices": _choices(ended), "visible": len(ended) > 1}
        return {
            **(self._start(ended[0][1]) if ended else {}),
            self.card: gr.update(visible=bool(ended)),
            self.run: gr.update(value=ended[0][1].header.run_id if ended else None, **several),
            **self._difference(timed),
            self.third: gr.update(visible=True),
            self.acceptance: acceptance_table(traces, names),
        }

    def _difference(self, timed: Sequence[tuple[str, Trace]]) -> Update:
        """Show the difference of the first two runs; the choice of others if there are more."""
        shown = timed[:2] if len(timed) > 1 else []
        traces = [trace for _, trace in shown]
        return {
            self.second: gr.update(visible=bool(shown)),
            self.chosen: gr.update(visible=len(timed) > 2),
            **{
                run: gr.update(choices=_choices(timed), value=trace.header.run_id)
                for run, trace in zip(self.pair_of_runs, traces, strict=False)
            },
            self.diff: self._compared(traces) if shown else "",
        }

    def compare(self, first: str, second: str) -> str:
        try:
            return self._compared(find_traces(self.service, f"{first},{second}"))
        except SpecScopeError as error:
            return alert(error)

    def _compared(self, traces: Sequence[Trace]) -> str:
        try:
            return difference(diff(*traces), _names(traces))
        except SpecScopeError as error:
            return alert(error)

    def choose(self, run: str) -> Update:
        """Show the what-if of another of the open runs."""
        try:
            (trace,) = find_traces(self.service, str(run))
        except SpecScopeError as error:
            return {self.message: alert(error)}
        return self._start(trace)

    def _start(self, trace: Trace) -> Update:
        """Return the controls of a what-if as the run was recorded."""
        made, header, metrics, own = self.made, trace.header, measure(trace), _has_own_times(trace)
        profile = header.profile if header.profile in profiles() else "pearl-4xA100"
        recorded = header.environment.get("profile_pair")
        # an own profile may have the name of a bundled one, with other pairs
        pair = recorded if profile == header.profile and recorded in Profile.load(profile).pairs else ""
        gamma = header.config.get("gamma") or max((r.drafted for r in trace.rounds), default=0) or 4
        rate = metrics.acceptance_rate_tested
        latency = Profile.load(profile).latency(pair or None)
        values = (
            0.8 if rate is None else round(rate, 2),
            min(LONGEST, max(1, gamma if isinstance(gamma, int) else 4)),
            min(MOST_C, max(1.0, round(metrics.c or latency.c, 2))),
        )
        return {
            **dict.fromkeys((made["method"], made["settings"], self.message, self.result, self.kept), ""),
            made["profile"]: gr.update(choices=_clusters(own), value="" if own else profile),
            made["pair"]: gr.update(choices=_pairs("" if own else profile), value=pair or ""),
            made["devices"]: 0,
            self.viewer: viewed(()),
            self.keep: gr.update(visible=False),
            self.rate: values[0],
            self.gamma: values[1],
            self.c: gr.update(value=values[2], maximum=max(USUAL_C, math.ceil(values[2]))),
            self.chart: chart(*values),
        }

    def show_replay(self, *given: Any) -> Update:
        from specscope.traces.whatif.replay import Change, what_if  # imports torch, which takes seconds

        try:
            wanted = self.made.settings(given)
            (trace,) = find_traces(self.service, str(wanted.run))
            with at("whatif-profile"):
                if wanted.profile:
                    check_profile(wanted.profile)
                plain = None if wanted.profile or trace.header.virtual else self._plain(trace)
            with at("whatif-settings"):
                typed = settings_of(wanted.settings)
            controls = {"devices": "whatif-devices", **dict.fromkeys(typed, "whatif-settings")}
            with at("whatif-settings" if typed else "whatif-method", controls):
                place = (wanted.profile, str(wanted.pair or ""), wanted.devices, str(wanted.method or ""))
                result = what_if(trace, Change(*place, typed, plain))
        except SpecScopeError as error:
            nothing = {self.result: "", self.viewer: viewed(()), self.keep: gr.update(visible=False)}
            return {self.message: alert(error), **nothing}
        self.service.hold(result.traces)
        ids = [t.header.run_id for t in result.traces]
        return {
            self.message: "",
            self.result: what_if_result(result),
            self.viewer: viewed(ids),
            self.keep: gr.update(visible=True, interactive=True),
            self.kept: ",".join(ids),
        }

    def _plain(self, trace: Trace) -> Trace | None:
        """Return plain decoding among the runs compared with a measured one."""
        run, store = trace.header.run_id, self.service.store
        others = [self.service.trace(name) for name in (store.group(run) if store else ()) if name != run]
        runs = [trace, *filter(None, others)]
        found = comparisons([[one] for one in runs])[0].baseline
        return runs[found] if found else None

    def store_replay(self, kept: str) -> Update:
        try:
            traces = find_traces(self.service, str(kept))
            store_of(self.service).insert(*traces)
        except SpecScopeError as error:
            return {self.message: alert(error)}
        stored = f"Stored as {' and '.join(t.header.run_id for t in traces)}."
        return {self.message: note(stored), self.keep: gr.update(interactive=False)}


def _names(traces: Sequence[Trace]) -> list[str]:
    """Return a name for each run; with its id if several have the same name."""
    names = [name_of(trace.header) for trace in traces]
    if len(set(names)) == len(names):
        return names
    return [f"{name} · {trace.header.run_id}" for name, trace in zip(names, traces, strict=True)]


def _choices(runs: Sequence[tuple[str, Trace]]) -> list[tuple[str, str]]:
    return [(name, trace.header.run_id) for name, trace in runs]


def draw(rate: float | None, gamma: float | None, c: float | None) -> str:
    """Return the chart of the sliders; a missing or too large number is moved into its range."""
    return chart(
        min(1.0, max(0.0, rate or 0.0)),
        min(LONGEST, max(1, int(gamma or 1))),
        min(MOST_C, max(1.0, c or 1.0)),
    )


def pairs_of(profile: str) -> Any:
    return gr.update(choices=_pairs(profile), value="") if profile in ("", *profiles()) else gr.skip()


def _pairs(profile: str) -> list[tuple[str, str]]:
    """Return the choices of a profile's modelled pair; a run's own times have one pair."""
    pairs = Profile.load(profile).pairs if profile else {}
    return [("Default", ""), *((pair.title, key) for key, pair in pairs.items())]


def _clusters(own: bool) -> list[str | tuple[str, str]]:
    return [*([(OWN_TIMES, "")] if own else []), *profiles()]


def _has_own_times(trace: Trace) -> bool:
    """Return whether a measured run can be its what-if's cluster."""
    try:
        return not trace.header.virtual and bool(own_times(trace))
    except UsageError:
        return False


def settings_of(text: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for part in filter(None, map(str.strip, str(text or "").split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{shown(part)} is not FIELD=VALUE, such as gamma=6")
        settings[name.strip()] = value.strip()
    return settings
