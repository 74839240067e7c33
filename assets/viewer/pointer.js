// The pointer on the timeline: it moves and zooms the window, and shows the card of what is below it.

const STILL = 4; // pixels that a click may move

Gantt.prototype.listen = function () {
  this.pressed = null;
  this.box.addEventListener("pointermove", (event) => this.point(event));
  this.box.addEventListener("pointerleave", () => {
    this.pointed = undefined;
    this.bus.hover(null);
  });
  this.box.addEventListener("pointerdown", (event) => this.press(event), true);
  this.box.addEventListener("dblclick", () => this.fit());
  this.box.addEventListener("wheel", (event) => this.roll(event), { passive: false });
  this.dragged = (event) => this.drag(event);
  this.released = (event) => this.release(event);
  window.addEventListener("pointermove", this.dragged);
  window.addEventListener("pointerup", this.released, true);
  window.addEventListener("pointercancel", this.released, true);
};

Gantt.prototype.unlisten = function () {
  window.removeEventListener("pointermove", this.dragged);
  window.removeEventListener("pointerup", this.released, true);
  window.removeEventListener("pointercancel", this.released, true);
};

/** Show the card of what the pointer hovers over. */
Gantt.prototype.point = function (event) {
  if (event.buttons || this.pressed) return;
  this.pointed = this.range ? this.time(event.clientX - this.plot.getBoundingClientRect().left) : undefined;
  const hit = this.hit(event);
  this.bus.hover(hit, hit && this.boxAt(event, hit));
};

Gantt.prototype.press = function (event) {
  this.box.focus({ preventScroll: true });
  if (event.button !== 0 || !this.range) return;
  this.pressed = { x: event.clientX, y: event.clientY, range: this.range, hit: this.hit(event), moved: false, selects: event.shiftKey };
};

/** Move the window with the pointer; with Shift, mark a range. */
Gantt.prototype.drag = function (event) {
  const { pressed } = this;
  if (!pressed || !(event.buttons & 1)) return;
  const way = event.clientX - pressed.x;
  pressed.moved ||= Math.abs(way) >= STILL;
  if (!pressed.moved) return;
  this.box.classList.add("ss-dragging");
  this.bus.hover(null);
  if (pressed.selects) {
    const left = this.plot.getBoundingClientRect().left;
    const [from, to] = [pressed.x, event.clientX].map((x) => this.time(Math.max(0, Math.min(this.width, x - left)))).sort((a, b) => a - b);
    this.select([from, to]);
    return;
  }
  const shift = (-way * (pressed.range[1] - pressed.range[0])) / this.width;
  this.zoomTo(pressed.range[0] + shift, pressed.range[1] + shift);
};

/** End a drag, or pin the card of what was clicked. */
Gantt.prototype.release = function (event) {
  const { pressed } = this;
  this.pressed = null;
  this.box.classList.remove("ss-dragging");
  if (pressed?.moved && pressed.selects) this.bus.select(this.selected);
  if (!pressed || pressed.moved || event.type === "pointercancel" || Math.abs(event.clientY - pressed.y) >= STILL) return;
  this.bus.pin(pressed.hit, pressed.hit && this.boxAt(event, pressed.hit));
};

/** Zoom around the pointer with Ctrl, move with a sideways wheel; else the page scrolls. */
Gantt.prototype.roll = function (event) {
  if (!this.range || !this.width) return;
  const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    this.zoom(Math.exp(Math.max(-100, Math.min(100, event.deltaY)) / 250), this.time(event.clientX - this.plot.getBoundingClientRect().left));
  } else if (event.shiftKey || Math.abs(sideways) > Math.abs(event.deltaY)) {
    event.preventDefault();
    this.pan(sideways / this.width);
  }
};

/** The target of a pointer event: {run, card, row, span | wait | band | token}, or null. */
Gantt.prototype.hit = function (event) {
  if (!this.width || !this.place) return null;
  const frame = this.plot.getBoundingClientRect();
  const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
  if (x < 0 || x > this.width) return null;
  const card = this.place.cards.find((c) => y >= c.body && y < c.body + c.bodyHeight);
  const row = card?.rows.find((r) => y >= card.body + r.y && y < card.body + r.y + r.height);
  if (!row) return null;
  const t = this.time(x);
  const pixel = (this.range[1] - this.range[0]) / this.width;
  const place = { run: card.run, card, row };
  if (row.type === "tokens") {
    const marks = (row.marks ?? []).filter((m) => Math.abs(m.x - t) < 6 * pixel);
    const near = marks.sort((a, b) => Math.abs(a.x - t) - Math.abs(b.x - t))[0];
    return near ? { ...place, token: near.row } : null;
  }
  if (row.type === "band") {
    const at = intervalAt(bandLine(card.run), t);
    return at >= 0 ? { ...place, band: card.run.band[at] } : null;
  }
  const lane = row.type === "track" ? Math.min(row.track.lanes - 1, Math.floor((y - card.body - row.y) / SIZE.lane)) : 0;
  return hitTrack(place, t, lane, 2 * pixel);
};

function hitTrack(place, t, lane, reach) {
  const { track } = place.row;
  const line = lanesOf(track).lines[lane];
  const at = intervalAt(line, t, reach);
  if (at >= 0) return { ...place, span: track.spans.id[line.at[at]], index: line.at[at] };
  const idle = intervalAt(waitLine(track), t);
  return idle >= 0 ? { ...place, wait: track.waits[idle] } : null;
}

/** The rectangle of the viewport at a place in the row of a track, or in the row of the tokens. */
Gantt.prototype.besideRow = function (run, x, track) {
  const card = this.place.cards.find((c) => c.run === run);
  const row = card.rows.find((r) => r.type === "track" && r.track === track) ?? card.rows.at(-1);
  const { left, top } = this.plot.getBoundingClientRect();
  return { left: left + x, top: top + card.body + row.y, bottom: top + card.body + row.y + row.height };
};

/** The rectangle of the viewport beside which the card is shown. */
Gantt.prototype.boxAt = function (event, { card, row }) {
  const top = this.plot.getBoundingClientRect().top + card.body + row.y;
  return { left: event.clientX + 12, top, bottom: top + row.height };
};
