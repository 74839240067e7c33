// The timeline of work and waiting. Plotly draws the bars; labels, cursor, veil and highlights are elements above it.

const COLOURS = [
  "ink", "muted", "line", "card", "grid", "hatch", "accepted", "rejected", "bonus",
  "draft", "draft-edge", "verify", "verify-edge", "pre-verify", "pre-verify-edge", "prefill", "prefill-edge",
  "calibrate", "calibrate-edge", "communicate", "communicate-edge", "sample", "sample-edge",
  "band-both", "band-draft", "band-target", "band-none", "strip-draft", "strip-verify",
  "wait-draft", "wait-verify", "wait-communication", "wait-queue", "wait-host",
];
const CONFIG = { displayModeBar: false, doubleClick: false, scrollZoom: false, responsive: false, showTips: false };

/** The resolved value of every colour: plotly does not read CSS variables. */
function coloursOf(root) {
  const probe = el("span", { hidden: true });
  root.append(probe);
  const values = COLOURS.map((name) => {
    probe.style.color = `var(--ss-${name})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return Object.fromEntries(values);
}

class Gantt {
  constructor(root, plotly, bus) {
    Object.assign(this, { root, bus, t: Infinity, range: null, follow: true, drawing: null });
    this.under = el("div", { class: "ss-under" });
    this.plot = el("div", { class: "ss-plot", "aria-hidden": "true" });
    this.over = el("div", { class: "ss-over" });
    this.note = el("p", { class: "ss-detail", role: "status" });
    this.box = el("div", {
      class: "ss-gantt", tabindex: "0", role: "group",
      "aria-label": "Timeline of all runs. Full stop and comma step through spans, question mark lists all keys. The table below has the same data.",
    }, this.under, this.plot, this.over);
    this.untimed = el("div");
    this.node = el("div", {}, this.box, this.untimed, this.note);
    this.settle = throttled(() => this.draw(), 120);
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(this.box);
    this.listen();
    Promise.resolve(plotly).then((loaded) => {
      this.plotly = loaded;
      this.draw();
    });
  }

  update(model) {
    this.model = model;
    this.place = geometry(model);
    this.box.style.height = `${this.place.height}px`;
    this.box.hidden = !model.runs.some((run) => run.timed);
    this.untimed.replaceChildren(...(model.runs.length && this.box.hidden ? model.runs.map(untimedCard) : []));
    if (this.follow || !this.range) this.range = fitWindow(model);
    this.frame();
    this.draw();
  }

  /** Place the cards, titles and labels below and beside the plot. */
  frame() {
    const put = (node, top, height) => {
      node.style.top = `${top}px`;
      if (height !== undefined) node.style.height = `${height}px`;
      return node;
    };
    this.under.replaceChildren(...this.place.cards.flatMap((card) => [
      put(el("div", { class: "ss-card ss-gantt-card" }), card.top, card.height),
      put(el("div", { class: "ss-gantt-head" }, headOf(card.run)), card.top),
      ...card.rows.filter((row) => row.label).map((row) => put(labelOf(card.run, row), card.body + row.y - 3, row.type === "track" && !row.track.measured ? row.height + SIZE.strip + 9 : row.height + 6)),
      put(el("div", { class: "ss-row-label ss-row-axis" }, "ms"), card.body + card.bodyHeight, SIZE.axis),
    ]));
    this.veils = this.place.cards.map((card) => put(el("div", { class: "ss-veil" }), card.body - 3, card.bodyHeight + 7));
    this.lights = el("div");
    this.over.replaceChildren(...this.veils, this.lights);
  }

  /** Draw the window: one call of plotly at a time, and one more if something changed meanwhile. */
  draw() {
    if (this.box.hidden) this.root.dataset.drawn ??= "0";
    if (!this.plotly || this.box.hidden || this.drawing || !this.model?.runs.length || !this.plot.clientWidth) {
      this.again = Boolean(this.drawing);
      return;
    }
    this.colours ??= coloursOf(this.root);
    this.width = this.plot.clientWidth;
    const { traces, layout, detail } = figure(this.model, this.place, this.range, this.colours, this.width);
    layout.width = this.width;
    this.note.textContent = detail.bin
      ? `${number(detail.count, 0)} bars are too many for one view: they are merged into shares of every ${ms(detail.bin)}. Zoom in to see single bars.` : "";
    const first = !this.plot.classList.contains("js-plotly-plot");
    this.drawing = this.plotly.react(this.plot, traces, layout, CONFIG).then(() => {
      this.drawing = null;
      if (first) this.wire();
      if (this.gone) return this.plotly.purge(this.plot);
      this.overlay();
      this.root.dataset.drawn = String(Number(this.root.dataset.drawn ?? 0) + 1);
      if (this.again) this.draw();
    });
  }

  /** Listen to the zoom and pan of plotly. */
  wire() {
    this.plot.on("plotly_relayouting", (change) => this.moved(change));
    this.plot.on("plotly_relayout", (change) => this.moved(change) && this.settle());
    this.plot.on("plotly_doubleclick", () => this.fit());
  }

  moved(change) {
    const key = Object.keys(change).find((name) => /^xaxis\d*\.range/.test(name));
    if (!key) return false;
    const axis = key.split(".")[0];
    const range = change[`${axis}.range`] ?? [change[`${axis}.range[0]`], change[`${axis}.range[1]`]];
    if (!range.every(Number.isFinite)) return false;
    this.range = range;
    this.follow = false;
    this.bus.ranged();
    this.overlay();
    return true;
  }

  zoomTo(from, to) {
    const [low, high] = [this.model.axis.min, this.model.axis.max];
    const width = Math.min(Math.max(to - from, 0.02), (high - low) * 1.2);
    const start = Math.max(low - width * 0.1, Math.min((from + to - width) / 2, high - width * 0.9));
    this.range = [start, start + width];
    this.follow = false;
    this.bus.ranged();
    this.settle();
    this.overlay();
  }

  fit() {
    this.range = fitWindow(this.model);
    this.follow = true;
    this.bus.ranged();
    this.settle();
  }

  /** Zoom by a factor around the cursor or the middle, or pan by a share of the window. */
  zoom(factor) {
    const [from, to] = this.range;
    const middle = this.t > from && this.t < to ? this.t : (from + to) / 2;
    this.zoomTo(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  pan(share) {
    const [from, to] = this.range;
    this.zoomTo(from + share * (to - from), to + share * (to - from));
  }

  x(t) {
    return ((t - this.range[0]) / (this.range[1] - this.range[0])) * this.width;
  }

  time(x) {
    return this.range[0] + (x / this.width) * (this.range[1] - this.range[0]);
  }

  at(t) {
    this.t = t;
    this.overlay();
  }

  /** Place the veils, whose left edge is the cursor, and the highlights. Only elements move, so this is fast. */
  overlay() {
    if (!this.width || !this.veils) return;
    const x = Math.max(0, Math.min(this.width, this.x(this.t)));
    const past = this.t >= this.model.axis.max;
    for (const veil of this.veils) {
      veil.hidden = past;
      veil.style.left = `${x}px`;
    }
    this.light();
  }

  highlight(marks) {
    this.marks = marks;
    this.light();
  }

  light() {
    if (!this.lights) return;
    const boxes = (this.marks ?? []).map(({ run, span, strong }) => this.boxOf(run, span, strong)).filter(Boolean);
    this.lights.replaceChildren(...boxes);
  }

  boxOf(run, span, strong) {
    const place = findSpan(run, span);
    const card = this.place.cards.find((c) => c.run.id === run.id);
    const row = place && card?.rows.find((r) => r.type === "track" && r.track.device === place.track.device);
    if (!row) return null;
    const { start, end, lane } = place.track.spans;
    const [low, high] = [this.x(start[place.index]), this.x(end[place.index])];
    if (high < 0 || low > this.width) return null;
    const box = el("div", { class: strong ? "ss-light ss-light-strong" : "ss-light" });
    const left = Math.max(-2, low - 1);
    box.style.left = `${left}px`;
    box.style.width = `${Math.max(4, Math.min(high + 1, this.width + 2) - left)}px`;
    box.style.top = `${card.body + row.y + SIZE.lane * lane[place.index] - 1}px`;
    box.style.height = `${SIZE.lane + 1}px`;
    return box;
  }

  resize() {
    if (this.plot.clientWidth && this.plot.clientWidth !== this.width) this.settle();
  }

  recolour() {
    this.colours = null;
    this.settle();
  }

  destroy() {
    this.gone = true;
    this.settle.cancel();
    window.removeEventListener("pointerup", this.released, true);
    this.resizing.disconnect();
    if (!this.drawing && this.plot.classList.contains("js-plotly-plot")) this.plotly.purge(this.plot);
  }
}

function labelOf(run, row) {
  if (row.type === "strip" || row.type === "measured") return stripLabel(run, row);
  const share = row.track && !row.track.measured ? run.metrics.occupancy[row.track.device] : undefined;
  return el("div", { class: "ss-row-label", title: row.label }, el("span", {}, row.label),
    share === undefined ? null : el("span", { class: "ss-busy", title: "share of decoding in which the device works" }, `${Math.round(100 * share)} % busy`));
}

/** The label of a strip: the busy share from the spans, or the measured load. */
function stripLabel(run, row) {
  const spans = row.type === "strip";
  const share = spans ? run.metrics.occupancy[row.track.device] : row.track.measured.busy;
  const title = spans ? "share of decoding in which the device works" : "mean load of the whole device while decoding, other programs included";
  return el("div", { class: "ss-row-label ss-row-strip", title }, `${row.label}${share === null ? "" : ` ${Math.round(100 * share)}\u202f%`}`);
}

/** A sentence in place of the timeline of a run without times. */
function untimedCard(run) {
  return el("section", { class: "ss-card ss-untimed" },
    el("div", { class: "ss-gantt-title" }, el("h3", {}, runName(run)), el("span", { class: "ss-badge" }, run.badge)),
    el("p", {}, "There is no timeline: the file holds no times. ", run.tokens.length ? run.note : ""));
}

function headOf(run) {
  const shares = run.headline.map((part) => el("span", { class: part.percent ? "" : "ss-none" },
    swatch(`band-${part.kind}`), `${part.label} `, el("b", {}, `${part.percent} %`)));
  const forwards = run.metrics.target_forwards;
  const each = run.figures.tokens_per_target_forward;
  const rest = forwards ? `${number(forwards, 0)} target forwards${each === "unknown" ? "" : ` · ${each} tokens each`}` : "";
  return [
    el("div", { class: "ss-gantt-title" }, el("h3", {}, runName(run)), el("span", { class: "ss-badge" }, run.badge),
      run.note ? el("span", { class: "ss-note" }, run.note) : null),
    el("div", { class: "ss-headline" }, shares, el("span", { class: "ss-rest" }, rest)),
  ];
}
