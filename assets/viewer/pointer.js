// Pointing at the timeline: the span, wait, token mark or stretch of the band under the mouse.

Gantt.prototype.listen = function () {
  const gantt = this;
  let pressed = null;
  this.box.addEventListener("pointermove", (event) => {
    if (event.buttons) return;
    const hit = gantt.hit(event);
    if (hit) gantt.bus.hoverSpan(hit, gantt.boxAt(event, hit));
    else gantt.bus.hover(null);
  });
  this.box.addEventListener("pointerleave", () => gantt.bus.hover(null));
  this.box.addEventListener("pointerdown", (event) => {
    gantt.box.focus({ preventScroll: true });
    pressed = { x: event.clientX, y: event.clientY, hit: gantt.hit(event) };
  }, true);
  this.released = (event) => {
    const still = pressed && Math.abs(event.clientX - pressed.x) + Math.abs(event.clientY - pressed.y) < 4;
    if (still) gantt.bus.pinSpan(pressed.hit, pressed.hit ? gantt.boxAt(event, pressed.hit) : null);
    pressed = null;
  };
  window.addEventListener("pointerup", this.released, true);
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
    const band = card.run.band.find(([, from, to]) => from <= t && t < to);
    return band ? { ...place, band } : null;
  }
  const lane = row.type === "track" ? Math.min(row.track.lanes - 1, Math.floor((y - card.body - row.y) / SIZE.lane)) : 0;
  return hitTrack(place, t, lane, 2 * pixel);
};

function hitTrack(place, t, lane, reach) {
  const { spans, waits } = place.row.track;
  for (let i = upperBound(spans.start, t + reach) - 1; i >= 0; i--) {
    if (spans.lane[i] !== lane) continue;
    if (spans.start[i] <= t && t < spans.end[i]) return { ...place, span: spans.id[i], index: i };
    if (spans.end[i] < t - reach) break;
  }
  const wait = waits.find(([from, to]) => from <= t && t < to);
  return wait ? { ...place, wait } : null;
}

/** The rectangle of the viewport beside which the card is shown. */
Gantt.prototype.boxAt = function (event, { card, row }) {
  const top = this.plot.getBoundingClientRect().top + card.body + row.y;
  return { left: event.clientX + 12, top, bottom: top + row.height };
};
