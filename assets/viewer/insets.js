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
 * have at(t), followed() and highlight(spans, span) for the spans of its run; none for those of another run.
 *
 * It may have draw(width) for its `svg`, which is called after an update and for another width, and, unless the chart is
 * `still`, for another window of the timeline. A chart whose update sets `rounds`, rows with a time `t`, has show(round):
 * of the round that is pointed at, else of the last one that replay has reached, else of the first.
 */
class PerRun {
  constructor(has, make) {
    Object.assign(this, { has, make, charts: new Map(), t: Infinity });
    this.node = el("div", {});
    this.draw = throttled(() => this.each((chart) => this.drawChart(chart)), 120);
    this.resizing = new ResizeObserver(() => [...this.charts.values()].some(({ draw, svg, width }) => draw && svg.clientWidth !== width) && this.draw());
    this.resizing.observe(this.node);
  }

  each(action) {
    for (const chart of this.charts.values()) action(chart);
  }

  update(model) {
    const runs = model.runs.filter(this.has);
    const charts = runs.map((run) => this.charts.get(run.id) ?? this.make());
    charts.forEach((chart, i) => {
      Object.assign(chart, { run: runs[i], width: 0, round: null, choose: () => this.choose(chart) });
      chart.update(runs[i]);
      this.choose(chart);
    });
    this.charts = new Map(runs.map((run, i) => [run.id, charts[i]]));
    const nodes = charts.map((chart) => chart.node);
    if (nodes.some((node, i) => node !== this.node.children[i]) || nodes.length < this.node.children.length) this.node.replaceChildren(...nodes);
    this.draw();
  }

  drawChart(chart) {
    const width = chart.draw && chart.svg.clientWidth;
    if (!width || (chart.still && width === chart.width)) return;
    chart.width = width;
    chart.draw(width);
  }

  choose(chart) {
    if (!chart.rounds) return;
    const round = chart.pointed ?? chart.rounds.findLast(({ t }) => t <= this.t) ?? chart.rounds[0];
    if (round === chart.round) return;
    chart.round = round;
    chart.show(round);
  }

  followed() {
    this.each((chart) => chart.followed?.());
    this.draw();
  }

  range() {
    this.draw();
  }

  at(t) {
    this.t = t;
    this.each((chart) => {
      this.choose(chart);
      chart.at?.(t);
    });
  }

  highlight(run, spans, span) {
    this.each((chart) => {
      const own = chart.run === run ? spans : new Set();
      chart.highlight?.(own, span);
      if (chart.rounds) chart.pointed = (own.size && (chart.roundOf ? chart.roundOf(own, span) : roundOf(chart, own))) || null;
      this.choose(chart);
    });
  }

  destroy() {
    this.draw.cancel();
    this.resizing.disconnect();
  }
}

/** The round of a chart that was verified by one of these spans, or undefined. */
function roundOf({ run, rounds }, spans) {
  const found = run.rounds.find((round) => spans.has(round.span));
  return found && rounds.find(({ step, sequence }) => step === found.step && sequence === found.sequence);
}

/** Give a chart its parts (`head`, `legend`, `svg` in a `plot`, `note`), and a card of them as its `node`. */
function chartCard(chart, look, role = "img") {
  chart.head = el("div", { class: "ss-gantt-title" });
  chart.legend = el("div");
  chart.svg = drawn("svg", { role });
  chart.plot = el("div", { class: "ss-pool-plot" }, chart.svg);
  chart.note = el("p", { class: "ss-detail", role: "status" });
  chart.node = el("section", { class: `ss-card ss-pool ${look}` }, chart.head, chart.legend, chart.plot, chart.note);
}

/** Give a chart that shows a round as elements its parts, and a button that opens them large. */
function largeCard(chart, viewer, look, name, ...more) {
  chart.head = el("div", { class: "ss-gantt-title" });
  chart.note = el("p", { class: "ss-detail", role: "status" });
  chart.body = el("div", { class: `${look}-body` });
  const holder = el("div", {}, el("div", { "data-look": look }, chart.note, chart.body, more));
  chart.large = viewer.large.button(() => `${name} · ${runName(chart.run)}`, holder);
  chart.node = el("section", { class: `ss-card ss-pool ${look}` }, chart.head, holder);
}

/** Give the card of a run's chart its name, and a head with a line of small text and `more` behind it. */
function entitle(chart, name, words = "", ...more) {
  const { node, head, run } = chart;
  node.setAttribute("aria-label", `${name}, ${runName(run)}`);
  head.replaceChildren(el("h3", {}, `${name} · ${runName(run)}`), badge(run.badge), ...(words ? [el("span", { class: "ss-note" }, words)] : []), ...more);
}

const drawnText = (x, y, anchor, words, look) => drawn("text", { x, y, "text-anchor": anchor, class: look }, words);

const drawnLine = (x1, y1, x2, y2, look = "ss-pool-grid") => drawn("line", { x1, y1, x2, y2, class: look });

/** A pattern of lines of this look, `wide` of each `size` pixels, on a ground or none. */
function hatching(id, look, { ground, size = 5, wide = 1.6, ...props } = {}) {
  return drawn("pattern", { id, width: size, height: size, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)", ...props },
    ground ? drawn("rect", { width: size, height: size, class: ground }) : null, drawn("rect", { width: wide, height: size, class: look }));
}

const STEPS = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: 1, ArrowDown: -1, Home: -1e9, End: 1e9 };

/**
 * Marks in a list: the pointer and the keyboard reach them. `act(mark, event)` is called for the mark that is pointed at
 * or focused, and for one that is clicked; mark null: for none. `keyOf(mark)` stays the same when a mark is drawn again.
 */
class Marks {
  constructor(list, look, keyOf, act, { steps = STEPS, reached = () => true } = {}) {
    Object.assign(this, { list, look, keyOf, steps, reached });
    const over = (event) => event.target.closest(look);
    for (const name of ["pointerleave", "focusout"]) list.addEventListener(name, (event) => act(null, event));
    for (const name of ["pointerover", "click"]) list.addEventListener(name, (event) => act(over(event), event));
    list.addEventListener("focusin", (event) => {
      const mark = over(event);
      if (!mark) return;
      this.focused = keyOf(mark);
      this.rove(mark);
      act(mark, event);
    });
    list.addEventListener("keydown", (event) => this.key(event));
  }

  all() {
    return [...this.list.querySelectorAll(this.look)];
  }

  key(event) {
    if (event.key === "Enter") event.target.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    const step = this.steps[event.key];
    if (!step || modified(event)) return;
    const all = this.all().filter(this.reached);
    event.preventDefault();
    all[Math.max(0, Math.min(all.length - 1, all.indexOf(event.target) + step))]?.focus();
  }

  /** Let Tab reach this mark only. */
  rove(mark) {
    this.list.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    mark?.setAttribute("tabindex", "0");
  }

  /** Draw the marks again: the one that Tab reaches, and the focus, stay. */
  redraw(...nodes) {
    const focus = this.list.contains(document.activeElement);
    this.list.replaceChildren(...nodes);
    const all = this.all();
    const chosen = all.find((mark) => this.keyOf(mark) === this.focused) ?? all[0];
    this.rove(chosen);
    if (focus) chosen?.focus({ preventScroll: true });
  }
}
