// Pure functions on the viewer's document, whose fields traces/view describes.

/** The step of the last round that has ended at time t; 0 before the first. */
function stepAt(run, t) {
  return run.rounds.reduce((last, r) => (r.t <= t ? Math.max(last, r.step) : last), 0);
}

/** The copies judged by the last round that has ended at time t. */
function copiesAt(run, t) {
  const step = run.copies.length ? stepAt(run, t) : 0;
  return run.copies.filter((copy) => copy.step === step);
}

/** The last round that has ended at time t and used a pool of n-grams, or undefined. */
function ngramsAt(run, t) {
  return run.ngrams.findLast((row) => row.t <= t);
}

/** The distinct times of all runs' `commits` or `rejections`, ascending. */
function moments(model, kind) {
  const times = model.runs.flatMap((run) =>
    kind === "commits"
      ? run.tokens.map((token) => token.t)
      : run.ghosts.filter((ghost) => ghost.outcome === "rejected").map((ghost) => ghost.t));
  return [...new Set(times)].sort((a, b) => a - b);
}

/** The entry of an ascending list next to t in the given direction, or undefined. */
function neighbour(times, t, direction) {
  return direction > 0 ? times.find((x) => x > t + 1e-9) : times.findLast((x) => x < t - 1e-9);
}

/** First index whose value is greater than t, in an ascending list. */
function upperBound(list, t) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= t) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The track of a span and its index there: {track, index}, or null. */
function findSpan(run, id) {
  for (const track of run.tracks) {
    const index = track.spans.id.indexOf(id);
    if (index >= 0) return { track, index };
  }
  return null;
}

/** The copy judged by a token's round, or undefined. */
function copyOf(run, row) {
  return run.copies.find((copy) => copy.sequence === row.sequence && copy.step === row.step);
}

/** The source of a copy, or undefined if redacted. The source of a sequence has the texts of its prompt only. */
function sourceOf(run, copy) {
  return run.sources.find((source) => source.document === copy.document && (copy.document >= 0 || source.sequence === copy.sequence));
}

/**
 * The indices of a copy in its source: [from, start) matched, [start, end) was copied. `exact` is the index of the
 * drafted token `row`, else -1. A copy that reaches the end of the sequence continues with its own first token.
 */
function copiedPlaces(copy, row) {
  const limit = copy.document < 0 ? copy.position : Infinity;
  let exact = row?.node >= 0 ? copy.start + row.node : -1;
  while (exact >= limit) exact -= limit - copy.start;
  return { from: copy.start - copy.match, start: copy.start, end: Math.min(limit, copy.start + copy.length), exact };
}

/** The texts at [from, to) of a copy's source: its own tokens, then those of the output. */
function sourceTexts(run, copy, from, to) {
  const texts = sourceOf(run, copy)?.texts ?? [];
  const output = new Map(copy.document < 0 ? run.tokens.filter((t) => t.sequence === copy.sequence).map((t) => [t.position, t.text]) : []);
  return Array.from({ length: to - from }, (_, i) => texts[from + i] ?? output.get(from + i) ?? "").join("");
}

/** The tokens, spans and copies to highlight with a token, a ghost or a span. */
function linked(run, item) {
  const rows = item.span === undefined
    ? [item.token]
    : [...run.tokens, ...run.ghosts].filter((row) => row.draft === item.span || row.verify === item.span);
  const spans = new Set(rows.flatMap((row) => [row.draft, row.verify]).filter((id) => id >= 0));
  if (item.span !== undefined) spans.add(item.span);
  const copies = [...new Set(rows.map((row) => copyOf(run, row)).filter(Boolean))];
  return { rows: new Set(rows), spans, copies };
}

/** A track's spans that touch the window, grouped by look: [{kind, lost, cancelled, bars: [{start, end, lane}]}]. */
function barsIn(track, from, to) {
  const looks = new Map();
  const { kind, start, end, lane, fate } = track.spans;
  for (let i = 0, last = upperBound(start, to); i < last; i++) {
    if (end[i] < from) continue;
    const lost = isLost(fate[i]);
    const cancelled = fate[i] === "cancelled";
    const key = `${kind[i]} ${lost} ${cancelled}`;
    if (!looks.has(key)) looks.set(key, { kind: kind[i], lost, cancelled, bars: [] });
    looks.get(key).bars.push({ start: start[i], end: end[i], lane: lane[i] });
  }
  return [...looks.values()];
}

/** The overlap band's stretches that touch the window, in the same form. */
function bandIn(band, from, to) {
  return ["both", "draft", "target", "none"].map((kind) => ({
    kind,
    bars: band.filter(([k, start, end]) => k === kind && end >= from && start <= to).map(([, start, end]) => ({ start, end, lane: 0 })),
  }));
}

const isLost = (fate) => fate !== "kept" && fate !== "open" && fate !== "unknown";

/**
 * Level of detail: instead of single bars, the share of each bin that each look fills, stacked from below. Bars get
 * `low` and `high`, shares of the lane's height; equal neighbours are merged.
 */
function shareBars(looks, from, to, bins) {
  const width = (to - from) / bins;
  const filled = new Map();
  return looks.map((look) => {
    const shares = new Map();
    for (const { start, end, lane } of look.bars) {
      eachBin(Math.max(start, from), Math.min(end, to), from, width, bins, (bin, part) => {
        const key = lane * bins + bin;
        shares.set(key, (shares.get(key) ?? 0) + part);
      });
    }
    const stacked = [];
    for (const [key, share] of [...shares].sort((a, b) => a[0] - b[0])) {
      const low = filled.get(key) ?? 0;
      const high = Math.min(1, low + share);
      filled.set(key, high);
      const start = from + (key % bins) * width;
      const bar = { start, end: start + width, lane: Math.floor(key / bins), low, high };
      const last = stacked.at(-1);
      const same = last && last.lane === bar.lane && start - last.end < width / 2 && Math.abs(last.low - low) + Math.abs(last.high - high) < 0.02;
      if (same) last.end = bar.end;
      else stacked.push(bar);
    }
    return { ...look, bars: stacked };
  });
}

/** Call `take` with every bin that [low, high) touches, and the share of the bin that it fills. */
function eachBin(low, high, from, width, bins, take) {
  for (let bin = Math.max(0, Math.floor((low - from) / width)); bin < bins && from + bin * width < high; bin++) {
    const part = Math.min(high, from + (bin + 1) * width) - Math.max(low, from + bin * width);
    if (part > 0) take(bin, part / width);
  }
}

/** Bars of one lane less than `gap` apart, merged: the outline of bars that are too thin for one each. */
function joined(bars, gap) {
  const last = new Map();
  const groups = [];
  for (const bar of bars) {
    const group = last.get(bar.lane);
    if (group && bar.start - group.end < gap) group.end = Math.max(group.end, bar.end);
    else groups.push(last.set(bar.lane, { start: bar.start, end: bar.end, lane: bar.lane }).get(bar.lane));
  }
  return groups;
}

/** Busy share of a track in equal bins of a window, each averaged over `span` ms around it but not before 0. */
function movingShares(track, from, to, bins, span) {
  const width = (to - from) / bins;
  const reach = Math.min(2000, Math.ceil(span / 2 / width));
  const before = Math.min(reach, Math.floor(from / width));
  const shares = occupancyBins(track, from - before * width, to + reach * width, bins + before + reach);
  const sums = [0];
  for (const share of shares) sums.push(sums.at(-1) + share);
  const end = Math.max(...track.spans.end, to);
  const last = Math.min(shares.length, Math.ceil((end - from) / width) + before);
  return Array.from({ length: bins }, (_, i) => {
    const low = Math.max(0, i + before - reach);
    const high = Math.max(low + 1, Math.min(last, i + before + reach + 1));
    return (sums[high] - sums[low]) / (high - low);
  });
}

/** Busy share of a track in equal bins of a window. */
function occupancyBins(track, from, to, bins) {
  const shares = new Array(bins).fill(0);
  const width = (to - from) / bins;
  const { start, end } = track.spans;
  let reached = from;
  for (let i = 0; i < start.length; i++) {
    const low = Math.max(start[i], reached);
    const high = Math.min(end[i], to);
    if (high <= low) continue;
    reached = high;
    eachBin(low, high, from, width, bins, (bin, part) => { shares[bin] = Math.min(1, shares[bin] + part); });
  }
  return shares;
}
