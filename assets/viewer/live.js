// A run in progress: deltas (traces/view/packed.py) add its new spans and tokens to the document that is shown.

/**
 * Add a delta to a run. What the run has already is left out. `origins` maps run ids to the ms from the run's start to
 * the start of decoding. Return whether the run has a track for every device that works.
 */
function grow(run, delta, origins) {
  const { spans, tokens } = delta;
  spans.id.forEach((_, i) => {
    if (spans.kind[i] === "prefill" && spans.step[i] === 0) origins.set(run.id, Math.max(origins.get(run.id) ?? 0, spans.end[i]));
  });
  const origin = origins.get(run.id) ?? 0;
  const known = (run.known ??= new Set(run.tracks.flatMap((track) => track.spans.id)));
  const tracks = new Map(run.tracks.map((track) => [track.device, track]));
  let complete = true;
  spans.id.forEach((id, i) => {
    const track = tracks.get(spans.device[i]);
    complete &&= Boolean(track) || spans.kind[i] === "prefill"; // a device that only prefilled has no track
    if (!track || known.has(id)) return;
    known.add(id);
    insertSpan(track, {
      id, kind: spans.kind[i], start: spans.start[i] - origin, end: spans.end[i] - origin, step: spans.step[i], rows: spans.rows[i],
      context: spans.context[i], fate: spans.outcome[i] === "cancelled" ? "cancelled" : KINDS[spans.kind[i]].drafts ? "open" : "kept",
    });
    run.to = Math.max(run.to, spans.end[i] - origin);
  });
  const places = (run.places ??= new Set(run.tokens.map((token) => `${token.sequence}:${token.position}`)));
  for (const token of tokens) {
    const place = `${token.sequence}:${token.position}`;
    if (places.has(place)) continue;
    places.add(place);
    run.tokens.push({ ...token, index: run.tokens.length, t: token.t - origin });
  }
  if (tokens.length) run.marks = run.bySpan = undefined;
  return complete;
}

/** Insert a span by its start, in the first lane that is free. */
function insertSpan(track, span) {
  const { spans } = track;
  let at = spans.id.length;
  while (at > 0 && spans.start[at - 1] > span.start) at--;
  const taken = new Set();
  for (let i = spans.id.length - 1; i >= Math.max(0, at - 32); i--) {
    if (spans.start[i] < span.end && spans.end[i] > span.start) taken.add(spans.lane[i]);
  }
  let lane = 0;
  while (taken.has(lane)) lane++;
  track.lanes = Math.max(track.lanes, lane + 1);
  for (const [name, value] of Object.entries({ ...span, lane })) spans[name].splice(at, 0, value);
  track.drawn = track.busyTimes = undefined;
}

/** Draw what a delta added; the axis follows smoothly while it shows everything. */
Gantt.prototype.grow = function () {
  const place = geometry(this.model, (run) => this.bus.tracks.of(run));
  if (place.height !== this.place.height || !this.range) return this.update(this.model);
  if (this.follow) this.goal = fitWindow(this.model);
  return this.settle();
};

/** Move the window towards its goal; return whether it is not there yet. */
Gantt.prototype.ease = function () {
  if (!this.goal) return false;
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const pixel = (this.goal[1] - this.goal[0]) / this.width;
  const near = this.range.every((t, i) => Math.abs(t - this.goal[i]) < pixel);
  this.range = calm || near ? this.goal : this.range.map((t, i) => t + 0.25 * (this.goal[i] - t));
  if (calm || near) this.goal = null;
  return this.goal !== null;
};
