// The timeline of work and waiting. A canvas shows the bars; labels, cursor, veil and highlights are elements beside it.

const LEAST = 0.02; // ms in the narrowest window
const REST = 150; // ms after which a window that has not moved again is painted exactly

class Gantt {
  constructor(root, bus) {
    Object.assign(this, { root, bus, t: Infinity, range: null, selected: null, follow: true, frame: 0, moved: -Infinity, moving: false });
    this.map = new Minimap(this);
    this.pins = new Pins(this);
    this.under = el("div", { class: "ss-under" });
    this.plot = el("canvas", { class: "ss-plot", "aria-hidden": "true" });
    this.over = el("div", { class: "ss-over" });
    this.note = el("p", { class: "ss-detail", role: "status" });
    this.box = el("div", {
      class: "ss-gantt", tabindex: "0", role: "group",
      "aria-label": "Timeline of all runs. Full stop and comma step through spans, question mark lists all keys. The table below has the same data.",
    }, this.under, this.plot, this.over);
    this.untimed = el("div");
    this.node = el("div", {}, this.map.node, this.pins.node, this.box, this.untimed, this.note);
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(this.box);
    this.listen();
  }

  update(model) {
    this.model = model;
    this.place = geometry(model, (run) => this.bus.tracks.of(run));
    this.box.style.height = `${this.place.height}px`;
    this.box.hidden = !model.runs.some((run) => run.timed);
    this.untimed.replaceChildren(...(model.runs.length && this.box.hidden ? model.runs.map(untimedCard) : []));
    this.goal = null;
    if (this.follow || !this.range) this.range = fitWindow(model);
    this.map.update(model);
    this.pins.update(model);
    this.frameCards();
    this.draw();
  }

  /** Place the cards, titles and labels below and beside the plot. */
  frameCards() {
    const labelHeight = ({ type, track, height }) => (type === "track" && !track.measured ? height + SIZE.strip + 9 : height + 6);
    this.under.replaceChildren(...this.place.cards.flatMap((card) => [
      put(el("div", { class: "ss-card ss-gantt-card" }), { top: card.top, height: card.height }),
      put(el("div", { class: "ss-gantt-head" }, headOf(card.run)), { top: card.top }),
      ...card.rows.filter((row) => row.label).map((row) => put(labelOf(card.run, row), { top: card.body + row.y - 3, height: labelHeight(row) })),
      put(el("div", { class: "ss-row-label ss-row-axis" }, "ms"), { top: card.body + card.bodyHeight, height: SIZE.axis }),
    ]));
    const boxes = (look) => this.place.cards.map((card) => put(el("div", { class: look }), { top: card.body - 3, height: card.bodyHeight + 7 }));
    this.veils = boxes("ss-veil");
    this.ranges = boxes("ss-range-box");
    this.lights = el("div");
    this.over.replaceChildren(...this.ranges, ...this.veils, this.lights);
  }

  /** Draw in the next frame. */
  settle() {
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  /** Draw the window. */
  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (this.box.hidden) this.root.dataset.drawn ??= "0";
    this.width = this.plot.clientWidth;
    if (!this.model?.runs.length || this.box.hidden || !this.width) return;
    const ratio = window.devicePixelRatio || 1;
    this.mix(ratio);
    const easing = this.ease();
    this.hatches.move(this.x(0));
    const scene = sceneOn(this.plot, this.width, this.place.height, ratio, this.range, { colours: this.colours, hatches: this.hatches });
    const moving = this.moving || easing;
    const { merged, bin } = moving ? this.sketch(scene, ratio) : paint(scene, this.place);
    const note = merged ? `${number(merged, 0)} bars are too many for one view: they are merged into shares of every ${ms(bin)}. Zoom in to see single bars.` : "";
    if (!moving && this.note.textContent !== note) this.note.textContent = note;
    this.map.draw(this.colours, ratio);
    this.pins.draw(this, ratio);
    this.overlay();
    this.root.dataset.drawn = String(Number(this.root.dataset.drawn ?? 0) + 1);
    this.root.dataset.picture = moving ? "sketch" : "exact";
    if (easing) this.settle();
    this.root.dataset.window = this.range.join(" ");
    this.root.dataset.marks = String(this.place.cards.flatMap((card) => card.rows).reduce((sum, row) => sum + (row.marks?.length ?? 0), 0));
  }

  /** Paint a frame of a moving window in memory. */
  sketch(scene, ratio) {
    const { width, height } = this.plot;
    const { raster } = this;
    if (raster?.wide !== width || raster.high !== height || raster.colours !== this.colours) {
      this.raster = Object.assign(new Raster(scene.ctx, ratio), { colours: this.colours });
    }
    this.raster.begin(this.place, this.colours.card);
    const counts = paint({ ...scene, ctx: this.raster }, this.place);
    this.raster.end();
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      this.moving = false;
      this.settle();
    }, REST);
    return counts;
  }

  /** Make the styles for the theme and the screen, whose pixels have `ratio` device pixels. */
  mix(ratio) {
    if (this.colours && this.ratio === ratio) return;
    this.colours = coloursOf(this.root);
    this.hatches = hatchesOf(this.colours, ratio);
    this.ratio = ratio;
  }

  zoomTo(from, to) {
    const [low, high] = [this.model.axis.min, this.model.axis.max];
    const width = Math.min(Math.max(to - from, LEAST), (high - low) * 1.2);
    const start = Math.max(low - width * 0.1, Math.min((from + to - width) / 2, high - width * 0.9));
    this.range = [start, start + width];
    this.follow = false;
    this.goal = null;
    const now = performance.now();
    this.moving = now - this.moved < REST;
    this.moved = now;
    this.bus.ranged();
    this.settle();
  }

  fit() {
    this.range = fitWindow(this.model);
    this.follow = true;
    this.bus.ranged();
    this.settle();
  }

  /** Zoom by a factor around a time: by default the pointer's, else the replay's, else the middle of the window. */
  zoom(factor, anchor = this.pointed ?? (this.t < this.model.axis.max ? this.t : NaN)) {
    const [from, to] = this.range;
    const middle = anchor > from && anchor < to ? anchor : (from + to) / 2;
    const most = ((this.model.axis.max - this.model.axis.min) * 1.2) / (to - from);
    const by = Math.min(most, Math.max(LEAST / (to - from), factor));
    this.zoomTo(middle - (middle - from) * by, middle + (to - middle) * by);
  }

  /** Move the window so that it shows time t. */
  reveal(t) {
    const [from, to] = this.range ?? [-Infinity, Infinity];
    if (t < from || t > to) this.zoomTo(t - (to - from) / 2, t + (to - from) / 2);
  }

  /** Mark a range [from, to], or none. */
  select(range) {
    this.selected = range;
    this.overlay();
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
    this.pins.at(x, past);
    for (const veil of this.veils) {
      veil.hidden = past;
      put(veil, { left: x });
    }
    const [low, high] = (this.selected ?? [0, 0]).map((t) => Math.max(-4, Math.min(this.width + 4, this.x(t))));
    for (const box of this.ranges) {
      box.hidden = !this.selected || high - low <= 0;
      put(box, { left: low, width: high - low });
    }
    this.light();
  }

  /** Frame some spans, {run, span, strong}, and draw arrows between spans of a run. */
  highlight(marks, run, flows = []) {
    Object.assign(this, { marks, flowing: run, flows });
    this.light();
  }

  light() {
    if (!this.lights) return;
    const boxes = (this.marks ?? []).map(({ run, span, strong }) => this.boxOf(run, span, strong)).filter(Boolean);
    const arrows = this.flows?.length ? [this.arrows(this.flowing, this.flows)] : [];
    this.lights.replaceChildren(...boxes, ...arrows);
  }

  /** The place of a span above the canvas, {left, right, top}, or null if its track is not shown. */
  rectOf(run, span) {
    const place = findSpan(run, span);
    const card = this.place.cards.find((c) => c.run.id === run.id);
    const row = place && card?.rows.find((r) => r.type === "track" && r.track.device === place.track.device);
    if (!row) return null;
    const { start, end, lane } = place.track.spans;
    return { left: this.x(start[place.index]), right: this.x(end[place.index]), top: card.body + row.y + SIZE.lane * lane[place.index] };
  }

  boxOf(run, span, strong) {
    const rect = this.rectOf(run, span);
    if (!rect || rect.right < 0 || rect.left > this.width) return null;
    const left = Math.max(-2, rect.left - 1);
    const width = Math.max(4, Math.min(rect.right + 1, this.width + 2) - left);
    return put(el("div", { class: strong ? "ss-light ss-light-strong" : "ss-light" }), { left, width, top: rect.top - 1, height: SIZE.lane + 1 });
  }

  resize() {
    if (this.plot.clientWidth && this.plot.clientWidth !== this.width) this.draw();
  }

  recolour() {
    this.colours = null;
    this.settle();
  }

  destroy() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.resting);
    this.unlisten();
    this.resizing.disconnect();
  }
}
