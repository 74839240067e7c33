// The place of everything in the timeline, in pixels and ms. Pure functions.

const AVERAGE = 1 / 14; // share of the run over which a value of an occupancy strip is averaged
const SIZE = { head: 62, band: 10, lane: 26, strip: 9, tokens: 18, axis: 24, gap: 9, between: 12, foot: 8 };

/** The place of each run's card and of its rows, {cards: [{top, height, body, rows}], height}; `tracksOf(run)` are the shown tracks. */
function geometry(model, tracksOf) {
  let top = 0;
  const cards = model.runs.map((run) => {
    const rows = [];
    let y = 0;
    const row = (type, height, after, more) => {
      rows.push({ type, y, height, ...more });
      y += height + after;
    };
    if (drafted(run)) row("band", SIZE.band, SIZE.gap, { label: "overlap" });
    for (const track of tracksOf(run)) {
      const [name, clock] = track.label.split(" · clock "); // a label has room for two lines
      row("track", SIZE.lane * track.lanes, 3, { label: name, track });
      if (["requests", "server"].includes(track.role)) continue; // no device, or unknown sides
      row("strip", SIZE.strip, track.measured ? 6 : SIZE.gap, { label: track.measured ? "from spans" : "", track });
      if (track.measured) row("measured", SIZE.strip, SIZE.gap, { label: track.measured.label, track });
      if (clock) row("clock", SIZE.strip, SIZE.gap, { label: `clock ${clock}`, track });
    }
    row("tokens", SIZE.tokens, 0, { label: "tokens" });
    const card = { run, rows, top, body: top + SIZE.head, bodyHeight: y, height: SIZE.head + y + SIZE.axis + SIZE.foot };
    top += card.height + SIZE.between;
    return card;
  });
  return { cards, height: Math.max(0, top - SIZE.between) };
}

const drafted = (run) => (run.long && run.tracks.some((track) => track.role.includes("drafter"))) || run.headline.some((part) => part.kind === "both");

/** The window that shows everything; of a long prefill only the end. */
function fitWindow(model) {
  const { min, max } = model.axis;
  const decode = Math.max(max, 1e-6);
  return [-min > 0.25 * decode ? -0.04 * decode : min - 0.005 * decode, decode * 1.005];
}

/** Round numbers in [low, high], about one per `room` pixels. */
function roundTicks(low, high, pixels, room) {
  const rough = ((high - low) * room) / Math.max(1, pixels);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, i) => (first + i) * step);
}

/** The measured load of a track as a line whose looks are percents: a sample holds for the time since the one before it. */
function loadLine(track) {
  const { samples } = track.measured;
  const usual = samples.length > 1 ? samples[1][0] - samples[0][0] : 0;
  return (track.load ??= lineOf(samples.length, (i) => [i ? samples[i - 1][0] : samples[i][0] - usual, samples[i][0], Math.round(100 * samples[i][1]), i]));
}

/** The measured shares in a window as {start, end, share}; if there are too many, the mean of every pixel or so. */
function loadSteps(track, from, to, pixel) {
  const line = loadLine(track);
  const [first, last] = visible(line, from, to);
  const stride = Math.max(1, Math.floor(((last - first) * pixel) / (to - from)));
  const steps = [];
  for (let i = first; i < last; i += stride) {
    const end = Math.min(last, i + stride);
    let sum = 0;
    for (let k = i; k < end; k++) sum += line.look[k];
    steps.push({ start: Math.max(from, line.start[i]), end: Math.min(to, line.end[end - 1]), share: sum / (end - i) / 100 });
  }
  return steps;
}

const SHOWN = ["plain", "accepted", "rejected", "corrected", "bonus"]; // outcomes of tokens with a mark

/**
 * The tokens and rejected drafts of the chosen sequence by time: {rows, t, back, code, room}. `back` is the number of
 * rows of the same commit after it, `code` an index into SHOWN, `room` the usual ms between two marks.
 */
function marksOfRun(run) {
  if (run.marks && run.marks.chosen === run.chosen) return run.marks;
  const lost = run.ghosts.filter((ghost) => ghost.outcome === "rejected");
  const rows = ofChosen(run, [...run.tokens, ...lost])
    .sort((a, b) => a.t - b.t || a.position - b.position || (a.outcome === "rejected" ? -1 : 1));
  const [t, back, code] = [new Float64Array(rows.length), new Int32Array(rows.length), new Uint8Array(rows.length)];
  const rooms = [];
  let size = 0;
  for (let i = rows.length - 1; i >= 0; i--) {
    t[i] = rows[i].t;
    code[i] = SHOWN.indexOf(rows[i].outcome);
    back[i] = i + 1 < rows.length && t[i + 1] === t[i] ? back[i + 1] + 1 : 0;
    size += 1;
    if (i > 0 && rows[i - 1].t !== t[i]) rooms.push((t[i] - rows[i - 1].t) / size);
    if (i === 0 || rows[i - 1].t !== t[i]) size = 0;
  }
  rooms.sort((a, b) => a - b);
  run.marks = { chosen: run.chosen, rows, t, back, code, room: rooms[rooms.length >> 2] ?? Infinity };
  return run.marks;
}

/**
 * The marks in a window, {row, x, size, dense}: one per token and rejected draft. The marks of one commit are side by side and
 * end at its time. If there are too many, one of each outcome per 3 pixels is kept, and they are `dense`.
 */
function tokenMarks(run, from, to, pixel) {
  const { rows, t, back, code, room } = marksOfRun(run);
  const size = Math.max(5, Math.min(8, room / pixel));
  const [first, last] = [upperBound(t, from), upperBound(t, to + 64 * size * pixel)];
  const bins = last - first > 1500 ? Math.ceil((to - from) / (3 * pixel)) + 1 : 0;
  const taken = new Uint8Array(bins * SHOWN.length);
  const marks = [];
  for (let i = first; i < last; i++) {
    const x = t[i] - (back[i] * size + size / 2) * pixel;
    if (x < from || x > to) continue;
    if (bins) {
      const place = code[i] * bins + Math.floor((x - from) / (3 * pixel));
      if (taken[place]) continue;
      taken[place] = 1;
    }
    marks.push({ row: rows[i], x, size: size - 1.5, dense: bins > 0 });
  }
  return marks;
}
