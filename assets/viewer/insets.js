// Insets: views below the timeline, shown for the runs whose document has their section.

/**
 * Functions that make an inset for a viewer, in the order shown. An inset has a `node` and update(model), and may have
 * at(t), range() for a new window of the timeline, followed(model) for another chosen sequence, destroy() and
 * highlight(run, spans, span): spans linked with a token or with the span that is pointed at.
 */
const INSETS = [];

/** Call a method of all insets that have it. */
function callInsets(insets, method, ...args) {
  for (const inset of insets ?? []) inset[method]?.(...args);
}

/**
 * An inset with a chart for each run that `has` one. `make` returns a chart: it has a `node` and update(run), and may
 * have draw(), at(t), followed() and highlight(spans, span) for the spans of its run; none for those of another run.
 */
class PerRun {
  constructor(has, make) {
    Object.assign(this, { has, make, charts: new Map() });
    this.node = el("div", {});
    this.draw = throttled(() => this.each("draw"), 120);
    this.resizing = new ResizeObserver(() => [...this.charts.values()].some(({ svg, width }) => svg && svg.clientWidth !== width) && this.draw());
    this.resizing.observe(this.node);
  }

  each(method, ...args) {
    for (const chart of this.charts.values()) chart[method]?.(...args);
  }

  update(model) {
    const runs = model.runs.filter(this.has);
    const charts = runs.map((run) => this.charts.get(run.id) ?? this.make());
    charts.forEach((chart, i) => chart.update(runs[i]));
    this.charts = new Map(runs.map((run, i) => [run.id, charts[i]]));
    const nodes = charts.map((chart) => chart.node);
    if (nodes.some((node, i) => node !== this.node.children[i]) || nodes.length < this.node.children.length) this.node.replaceChildren(...nodes);
    this.draw();
  }

  followed() {
    this.each("followed");
    this.draw();
  }

  range() {
    this.draw();
  }

  at(t) {
    this.each("at", t);
  }

  highlight(run, spans, span) {
    for (const chart of this.charts.values()) chart.highlight?.(chart.run === run ? spans : new Set(), span);
  }

  destroy() {
    this.draw.cancel();
    this.resizing.disconnect();
  }
}

/** Give the card of a run's chart its name, and a head with `more` behind it. */
function entitle(chart, run, name, ...more) {
  chart.run = run;
  chart.node.setAttribute("aria-label", `${name}, ${runName(run)}`);
  chart.head.replaceChildren(el("h3", {}, `${name} · ${runName(run)}`), el("span", { class: "ss-badge" }, run.badge), ...more);
}

const chartHead = () => el("div", { class: "ss-gantt-title" });

/** A line of small text in a head. */
const headNote = (words) => el("span", { class: "ss-note" }, words);
