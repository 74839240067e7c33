// Moving from span to span, to a token, and to a step.

Viewer.prototype.stepSpan = function (direction) {
  const now = this.pinned?.item.span !== undefined ? this.pinned : null;
  const run = now?.run ?? this.model.runs[0];
  const place = now ? findSpan(run, now.item.span) : null;
  const track = place?.track ?? this.tracks.of(run)[0];
  if (!track) return;
  const at = place ? place.index + direction : upperBound(track.spans.start, Math.min(this.replay.t, this.gantt.range[0]));
  this.pickSpan(run, track, Math.max(0, Math.min(track.spans.id.length - 1, at)));
};

Viewer.prototype.stepTrack = function (direction) {
  const tracks = this.model.runs.flatMap((run) => this.tracks.of(run).map((track) => ({ run, track })));
  const place = this.pinned?.item.span !== undefined ? findSpan(this.pinned.run, this.pinned.item.span) : null;
  const at = place ? tracks.findIndex(({ track }) => track === place.track) + direction : 0;
  const next = tracks[Math.max(0, Math.min(tracks.length - 1, at))];
  const t = place ? place.track.spans.start[place.index] : this.gantt.range[0];
  if (next?.track.spans.id.length) this.pickSpan(next.run, next.track, Math.max(0, upperBound(next.track.spans.start, t) - 1));
};

Viewer.prototype.pickSpan = function (run, track, index) {
  const { start, end, kind, id } = track.spans;
  if (index < 0 || !id.length) return;
  const [from, to] = this.gantt.range;
  if (start[index] < from || end[index] > to) this.gantt.zoomTo(start[index] - (to - from) / 3, start[index] + (2 * (to - from)) / 3);
  this.show(run, { span: id[index] }, this.gantt.besideRow(run, Math.max(0, this.gantt.x(start[index])), track), true);
  this.live.textContent = `${track.label}: ${kind[index]}, ${ms(start[index])} to ${ms(end[index])}`;
};

/** Show the card of a span or a token, {span} or {token}, and move window and text to it. */
Viewer.prototype.pick = function (run, item) {
  this.release();
  if (item.span !== undefined) {
    const place = findSpan(run, item.span);
    if (place) this.pickSpan(run, place.track, place.index);
    return;
  }
  const { token } = item;
  if (token.index === undefined) this.showRejected(true);
  this.panes[this.model.runs.indexOf(run)].reveal(token);
  if (run.timed) this.gantt.reveal(token.t);
  this.show(run, item, this.placeOf(run, token), true);
  this.live.textContent = `${quoted(token.text)}, ${outcomeOf(token)}, step ${token.step}`;
};

/** The rectangle beside which a token's card is shown: its text, or its mark if the text is outside of the window. */
Viewer.prototype.placeOf = function (run, token) {
  const box = this.boxOfToken(run, token);
  if ((box.bottom > 0 && box.top < window.innerHeight) || !this.gantt.width) return box;
  return this.gantt.besideRow(run, this.gantt.x(token.t));
};

/** Show the card of the verification of a step. */
Viewer.prototype.pickStep = function (run, step) {
  const round = run.rounds.find((r) => r.step === step);
  if (round && findSpan(run, round.span)) this.pick(run, { span: round.span });
};

/** Pin or free the track of the shown span or wait. */
Viewer.prototype.pinTrack = function () {
  const { run, item } = this.shown ?? {};
  const track = item?.span !== undefined ? findSpan(run, item.span)?.track : item?.row?.track;
  if (track) this.live.textContent = `${track.label} of ${runName(run)} is ${this.tracks.pin(run, track) ? "pinned" : "no longer pinned"}.`;
  else this.live.textContent = "No track is chosen: go to a span with the full stop or the comma, then press t.";
};

/** The time from which to look for the next rejection: the pinned item's, else the replay's if it is in view, else the view's edge. */
Viewer.prototype.startOf = function (direction) {
  const { item, run } = this.pinned ?? {};
  const place = item?.span !== undefined ? findSpan(run, item.span) : null;
  if (place) return place.track.spans.start[place.index];
  if (item?.token) return item.token.t;
  const [low, high] = this.gantt.range;
  const { t } = this.replay;
  const over = direction > 0 && t >= this.model.axis.max;
  return t >= low && t <= high && !over ? t : direction > 0 ? low : high;
};

/** Show the time that a step has reached; a card of another time goes. */
Viewer.prototype.arrive = function (t) {
  this.release();
  this.gantt.reveal(t);
};
