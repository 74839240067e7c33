// A range of time in the timeline, and the figures of the work and the waiting in it.

const RANGE_HEAD = ["run", "device", "work or wait", "count", "total", "mean", "p95"];

/** The work and the waits of runs in [from, to]: a list of {run, track, name, parts}, with the ms of each part inside. */
function partsIn(runs, tracksOf, from = -Infinity, to = Infinity) {
  return runs.flatMap((run) => tracksOf(run).flatMap((track) => {
    const { lines, looks } = lanesOf(track);
    const groups = new Map();
    const take = (line, nameOf) => {
      const [first, last] = visible(line, from, to);
      for (let i = first; i < last; i++) {
        const part = Math.min(to, line.end[i]) - Math.max(from, line.start[i]);
        if (part < 0 || (part === 0 && line.end[i] > line.start[i])) continue; // it only touches the range
        const name = nameOf(line.look[i]);
        (groups.get(name) ?? groups.set(name, []).get(name)).push(part);
      }
    };
    lines.forEach((line) => take(line, (look) => lookName(looks[look])));
    take(waitLine(track), (reason) => WAITS[REASONS[reason]]);
    return [...groups].map(([name, parts]) => ({ run, track, name, parts }));
  }));
}

/** [run, device, kind, count, total, mean, p95] of them, with times in ms. */
const figuresIn = (...range) => partsIn(...range).map(({ run, track, name, parts }) => [runName(run), track.label, name, ...statistics(parts)]);

const lookName = ({ kind, lost, cancelled }) => kind + (cancelled ? ", cancelled" : lost ? ", discarded" : "");

/** Count, total, mean and 95th percentile (nearest rank). */
function statistics(parts) {
  const total = parts.reduce((sum, part) => sum + part, 0);
  const sorted = [...parts].sort((a, b) => a - b);
  return [parts.length, total, total / parts.length, sorted[Math.ceil(0.95 * parts.length) - 1]];
}

/** CSV as spreadsheets read it; a cell that would run as a formula gets an apostrophe in front. */
function csvOf(rows) {
  const cell = (value) => {
    const text = typeof value === "number" ? String(Math.round(value * 1e6) / 1e6) : value.replace(/^[=+\-@\t\r]/, "'$&");
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** The panel below the timeline. `range` is [from, to] or null. */
class RangePanel {
  constructor(viewer) {
    this.viewer = viewer;
    this.range = null;
    this.node = el("section", { class: "ss-card ss-range", "aria-label": "Figures of the range", hidden: true });
  }

  set(range) {
    this.range = range;
    this.node.hidden = !range;
    if (!range) return this.node.replaceChildren();
    const [from, to] = range;
    const { runs } = this.viewer.model;
    const missing = runs.find((run) => run.untold)?.untold
      ?? (runs.some((run) => run.long && !run.told) && "The waits of the run are loading; the figures follow.");
    const rows = missing ? [] : figuresIn(runs, (run) => this.viewer.tracks.of(run), from, to);
    const button = (name, title, action) => el("button", { type: "button", class: "ss-button ss-wide-button", title, onclick: action }, name);
    return this.node.replaceChildren(
      el("div", { class: "ss-range-head" }, el("h3", {}, `${ms(from)} to ${ms(to)}`), el("span", { class: "ss-badge" }, ms(to - from)),
        el("span", { class: "ss-note" }, "the parts of work and waits inside the range"),
        button("zoom", "Zoom to the range", () => this.viewer.gantt.zoomTo(from, to)),
        button("CSV", "Save these figures as a file", () => this.save(rows)),
        button("close", "Close ( Esc )", () => this.viewer.select(null))),
      missing ? el("p", { class: "ss-note" }, missing)
      : el("div", { class: "ss-scroll", ...scrolls("Figures of the range") }, table("Figures of the range", RANGE_HEAD,
        rows.map((row) => row.map((value, i) => (i < 3 ? value : i === 3 ? number(value, 0) : ms(value)))))));
  }

  save(rows) {
    const head = RANGE_HEAD.map((name, i) => (i > 3 ? `${name} (ms)` : name));
    const address = URL.createObjectURL(new Blob([csvOf([head, ...rows])], { type: "text/csv" }));
    el("a", { href: address, download: "specscope-range.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }
}
