// Pinned tracks: copies above the timeline that stay in view while the page scrolls, on the same time axis.

const PIN_GAP = 5; // pixels between two pinned tracks

class Pins {
  constructor(gantt) {
    this.gantt = gantt;
    this.rows = [];
    this.labels = el("div", { class: "ss-pins-labels" });
    this.plot = el("canvas", { class: "ss-pins-plot", "aria-hidden": "true" });
    this.veil = el("div", { class: "ss-pins-veil" });
    this.over = el("div", { class: "ss-pins-over" }, this.veil);
    this.inner = el("div", { class: "ss-pins-inner" }, this.labels, this.plot, this.over);
    this.node = el("section", { class: "ss-card ss-pins", "aria-label": "Pinned tracks", hidden: true }, this.inner);
    this.inner.addEventListener("pointermove", (event) => this.point(event));
    this.inner.addEventListener("pointerleave", () => gantt.bus.hover(null));
    this.inner.addEventListener("pointerdown", (event) => this.press(event));
    this.inner.addEventListener("wheel", (event) => gantt.roll(event), { passive: false });
  }

  update(model) {
    let y = 0;
    this.rows = this.gantt.bus.tracks.pins(model).map(({ run, track }) => {
      const row = { type: "track", run, track, y, height: SIZE.lane * track.lanes };
      y += row.height + PIN_GAP;
      return row;
    });
    this.height = Math.max(0, y - PIN_GAP);
    this.node.hidden = !this.rows.length || this.gantt.box.hidden;
    this.inner.style.height = `${this.height}px`;
    this.labels.replaceChildren(...this.rows.map((row) => this.labelOf(row)));
  }

  labelOf({ run, track, y, height }) {
    const name = `${track.label} of ${runName(run)}`;
    const free = el("button", { type: "button", class: "ss-unpin", "aria-label": `Unpin ${name}`, title: `Unpin ${name}`,
      onclick: () => { this.gantt.bus.tracks.pin(run, track, false); this.gantt.box.focus({ preventScroll: true }); } }, "×");
    return put(el("div", { class: "ss-row-label ss-pins-label", title: name }, el("span", {}, track.label), el("small", {}, run.title), free), { top: y, height });
  }

  /** Draw the window of the timeline, with its colours and hatches. */
  draw({ range, width, colours, hatches }, ratio) {
    if (this.node.hidden || !width) return;
    const scene = sceneOn(this.plot, width, this.height, ratio, range, { colours, hatches });
    scene.ctx.clearRect(0, 0, width, this.height);
    for (const row of this.rows) PAINT.track(scene, row, row.run);
    this.node.dataset.window = range.join(" ");
  }

  /** Place the cursor of the replay, in pixels. */
  at(x, past) {
    this.veil.hidden = past;
    this.veil.style.left = `${x}px`;
  }

  /** What the pointer is on, as `Gantt.hit` returns it, or null. */
  hit(event) {
    const { gantt } = this;
    const frame = this.plot.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    const row = this.rows.find((r) => y >= r.y && y < r.y + r.height);
    if (!row || !gantt.width || x < 0 || x > gantt.width) return null;
    const card = { body: frame.top - gantt.plot.getBoundingClientRect().top };
    const lane = Math.min(row.track.lanes - 1, Math.floor((y - row.y) / SIZE.lane));
    return hitTrack({ run: row.run, card, row }, gantt.time(x), lane, (2 * (gantt.range[1] - gantt.range[0])) / gantt.width);
  }

  point(event) {
    if (event.buttons || this.gantt.pressed) return;
    const hit = this.hit(event);
    this.gantt.bus.hover(hit, hit && this.gantt.boxAt(event, hit));
  }

  /** Begin a click or a drag; the timeline ends it. */
  press(event) {
    if (event.button !== 0 || !this.gantt.range || event.target.closest("button")) return;
    this.gantt.box.focus({ preventScroll: true });
    event.preventDefault();
    this.gantt.pressed = { x: event.clientX, y: event.clientY, range: this.gantt.range, hit: this.hit(event), moved: false, selects: event.shiftKey };
  }
}
