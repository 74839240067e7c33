// A view as the fragment of an address: window, replay time, shown card, pinned tracks, rejected drafts, a sequence.

/** The fragment of what a viewer shows. */
function fragmentOf(viewer) {
  const { gantt, replay, model, pinned } = viewer;
  const parts = [];
  const short = (t) => String(Math.round(t * 1000) / 1000);
  if (!gantt.follow && gantt.range) parts.push(`window=${gantt.range.map(short).join(",")}`);
  if (replay.t < model.axis.max) parts.push(`at=${short(replay.t)}`);
  if (viewer.panel.range) parts.push(`range=${viewer.panel.range.map(short).join(",")}`);
  if (pinned) {
    const run = model.runs.indexOf(pinned.run);
    const { item } = pinned;
    if (item.span !== undefined) parts.push(`span=${run}.${item.span}`);
    else if (item.token?.index !== undefined) parts.push(`token=${run}.${item.token.index}`);
  }
  const pins = viewer.tracks.pins(model).map(({ run, track }) => `${model.runs.indexOf(run)}.${run.tracks.indexOf(track)}`);
  if (pins.length) parts.push(`pins=${pins.join(",")}`);
  if (viewer.rejected.checked) parts.push("view=rejected");
  return parts.join("&");
}

/** Show the view of a fragment; parts that this document lacks are left out. */
function follow(viewer, fragment) {
  const values = new URLSearchParams(fragment);
  const { model, gantt } = viewer;
  const numbers = (name, by, count) => {
    const list = (values.get(name) ?? "").split(by).map(Number);
    return list.length === count && values.get(name) && list.every(Number.isFinite) ? list : null;
  };
  const part = numbers("sequence", ".", 2);
  if (part) reveal(viewer, ...part);
  if (!model.runs.some((run) => run.timed)) return;
  const times = numbers("window", ",", 2);
  if (times && times[0] < times[1]) gantt.zoomTo(...times);
  for (const [run, track] of (values.get("pins") ?? "").split(",").map((pin) => pin.split(".").map(Number))) {
    if (model.runs[run]?.tracks[track]) viewer.tracks.pin(model.runs[run], model.runs[run].tracks[track], true);
  }
  const at = numbers("at", ",", 1);
  if (at) viewer.replay.to(at[0]);
  const range = numbers("range", ",", 2);
  if (range && range[0] < range[1]) viewer.select(range);
  viewer.showRejected(values.get("view") === "rejected");
  const [span, token, step] = ["span", "token", "step"].map((name) => numbers(name, ".", 2));
  const [run, place] = span ?? token ?? step ?? part ?? [];
  const shown = model.runs[run];
  const row = token && shown?.tokens.find((other) => other.index === place);
  if (span && shown && findSpan(shown, place)) viewer.pick(shown, { span: place });
  else if (row) viewer.pick(shown, { token: row });
  else if (step && shown) viewer.pickStep(shown, place);
  viewer.later = shown?.long && !viewer.pinned ? fragment : ""; // the whole run may have it
}

/**
 * Put the view into the address of the page, and the permalink of its runs on the clipboard; return the permalink. A
 * page that has the address of a race keeps it.
 */
function linkTo(viewer) {
  const here = new URL(location.href);
  here.hash = fragmentOf(viewer);
  const link = new URL(here);
  if (here.protocol.startsWith("http")) {
    link.searchParams.set("run", viewer.model.runs.map((run) => run.id).join(","));
    for (const name of ["race", "tab"]) link.searchParams.delete(name);
  }
  history.replaceState(history.state, "", here.searchParams.has("race") ? here : link);
  navigator.clipboard?.writeText(link.href).catch(() => {}); // without permission, the address bar has it
  return link.href;
}

/** Open and mark the text of a sequence of a run, or the row of its window of counts. */
function reveal(viewer, at, number) {
  const run = viewer.model.runs[at];
  const chart = viewer.insets.flatMap((inset) => (inset instanceof PerRun ? [...inset.charts.values()] : [])).find((card) => card.rowOf && card.run === run);
  if (run && !chart && run.sequences.includes(number)) viewer.follow(run, number);
  const node = chart ? chart.rowOf(number) : viewer.panes[at]?.parts.get(number);
  for (let fold = node?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  viewer.root.querySelector(".ss-named")?.classList.remove("ss-named");
  node?.classList.add("ss-named");
  node?.scrollIntoView({ block: "center" });
}

/** Follow the address's fragment when it changes; return a function that stops this. */
function followHash(viewer) {
  const moved = () => follow(viewer, location.hash.slice(1));
  window.addEventListener("hashchange", moved);
  return () => window.removeEventListener("hashchange", moved);
}
