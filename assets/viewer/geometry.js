// The place of everything in the timeline, in pixels and ms. Pure functions.

const AVERAGE = 1 / 14; // share of the run over which a value of an occupancy strip is averaged
const SIZE = { head: 62, band: 10, lane: 26, strip: 9, tokens: 18, axis: 24, gap: 9, between: 12, foot: 8 };

/** The place of each run's card and of its rows: {cards: [{top, height, body, rows}], height}. */
function geometry(model) {
  let top = 0;
  const cards = model.runs.map((run) => {
    const rows = [];
    let y = 0;
    const row = (type, height, after, more) => {
      rows.push({ type, y, height, ...more });
      y += height + after;
    };
    if (drafted(run)) row("band", SIZE.band, SIZE.gap, { label: "overlap" });
    for (const track of run.tracks) {
      row("track", SIZE.lane * track.lanes, 3, { label: track.label, track });
      row("strip", SIZE.strip, track.measured ? 6 : SIZE.gap, { label: track.measured ? "from spans" : "", track });
      if (track.measured) row("measured", SIZE.strip, SIZE.gap, { label: track.measured.label, track });
    }
    row("tokens", SIZE.tokens, 0, { label: "tokens" });
    const card = { run, rows, top, body: top + SIZE.head, bodyHeight: y, height: SIZE.head + y + SIZE.axis + SIZE.foot };
    top += card.height + SIZE.between;
    return card;
  });
  return { cards, height: Math.max(0, top - SIZE.between) };
}

const drafted = (run) => run.headline.some((part) => part.kind === "both");

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

/** Measured shares as steps inside a window: a sample holds for the time since the one before it. */
function sampleSteps(samples, from, to) {
  const usual = samples.length > 1 ? samples[1][0] - samples[0][0] : 0;
  return samples.map(([t, share], i) => ({ start: Math.max(from, i ? samples[i - 1][0] : t - usual), end: Math.min(to, t), share }))
    .filter((step) => step.end > step.start);
}

/** The tokens and rejected drafts of the chosen sequence by commit: {times, groups, room}, `room` in ms for a mark. */
function commitsOf(run) {
  if (run.commits && run.commits.chosen === run.chosen) return run.commits;
  const groups = new Map();
  const lost = run.ghosts.filter((ghost) => ghost.outcome === "rejected");
  for (const row of ofChosen(run, [...run.tokens, ...lost])) {
    if (!groups.has(row.t)) groups.set(row.t, []);
    groups.get(row.t).push(row);
  }
  const times = [...groups.keys()].sort((a, b) => a - b);
  for (const rows of groups.values()) rows.sort((a, b) => a.position - b.position || (a.outcome === "rejected" ? -1 : 1));
  const rooms = times.slice(1).map((t, i) => (t - times[i]) / groups.get(t).length).sort((a, b) => a - b);
  run.commits = { chosen: run.chosen, times, groups: times.map((t) => groups.get(t)), room: rooms[rooms.length >> 2] ?? Infinity };
  return run.commits;
}

/**
 * The marks in a window, {row, x, size}: one per token and rejected draft. The marks of one commit are side by side and
 * end at its time. If there are too many, one of each outcome per 3 pixels is kept.
 */
function tokenMarks(run, from, to, pixel) {
  const { times, groups, room } = commitsOf(run);
  const size = Math.max(5, Math.min(8, room / pixel));
  const marks = [];
  const places = new Set();
  const [first, last] = [upperBound(times, from), upperBound(times, to + 64 * size * pixel)];
  const dense = last - first > 750;
  for (let k = first; k < last; k++) {
    const rows = groups[k];
    for (let i = 0; i < rows.length; i++) {
      const x = times[k] - ((rows.length - 1 - i) * size + size / 2) * pixel;
      if (x < from || x > to) continue;
      if (dense) {
        const place = `${rows[i].outcome} ${Math.floor(x / (3 * pixel))}`;
        if (places.has(place)) continue;
        places.add(place);
      }
      marks.push({ row: rows[i], x, size: size - 1.5 });
    }
  }
  return marks;
}
