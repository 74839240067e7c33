// Times as typed arrays, and the searches on them. Pure functions.
//
// A *line* holds intervals that do not overlap, by start: `start` and `end` in ms, `look` as an index into a list of
// looks, and `at`, the index of each interval in the list that the line was made of.

const isLost = (fate) => fate !== "kept" && fate !== "open" && fate !== "unknown";

/** A line of `size` intervals; `fill(i)` returns [start, end, look, at] of the interval i. */
function lineOf(size, fill) {
  const line = { start: new Float64Array(size), end: new Float64Array(size), look: new Uint8Array(size), at: new Int32Array(size) };
  for (let i = 0; i < size; i++) [line.start[i], line.end[i], line.look[i], line.at[i]] = fill(i);
  return line;
}

/** The kind of each span for its colour: forwards for the second of two batches have their own. */
const kindsOf = ({ kind, batch }) => kind.map((name, i) => (batch?.[i] === 1 ? `${name}-second` : name));

/** A line per lane of a track's spans: {lines, looks: [{kind, lost, cancelled}]}. */
function lanesOf(track) {
  return (track.drawn ??= makeLanes(track));
}

function makeLanes({ spans, lanes }) {
  const { fate, lane, start, end } = spans;
  const looks = [];
  const codes = new Map();
  const own = Array.from({ length: lanes }, () => []);
  const code = kindsOf(spans).map((name, i) => {
    own[lane[i]].push(i);
    const key = `${name} ${fate[i]}`;
    if (!codes.has(key)) codes.set(key, looks.push({ kind: name, lost: isLost(fate[i]), cancelled: fate[i] === "cancelled" }) - 1);
    return codes.get(key);
  });
  const lines = own.map((ids) => lineOf(ids.length, (i) => [start[ids[i]], end[ids[i]], code[ids[i]], ids[i]]));
  return { lines, looks };
}

const REASONS = ["draft", "verify", "communication", "queue", "host"];

/** The waits of a track as a line; a look is an index into REASONS. */
function waitLine(track) {
  return (track.idle ??= lineOf(track.waits.length, (i) => [track.waits[i][0], track.waits[i][1], REASONS.indexOf(track.waits[i][2]), i]));
}

const BAND_KINDS = ["both", "draft", "target", "none"];

/** The overlap band of a run as a line; a look is an index into BAND_KINDS. */
function bandLine(run) {
  return (run.bandLine ??= lineOf(run.band.length, (i) => [run.band[i][1], run.band[i][2], BAND_KINDS.indexOf(run.band[i][0]), i]));
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

/** The intervals of a line that touch [from, to], as [first, last). */
function visible(line, from, to) {
  const first = upperBound(line.end, from);
  return [first > 0 && line.end[first - 1] === from ? first - 1 : first, upperBound(line.start, to)];
}

/** The index in a line of the interval at time t, or of the nearest one within `reach`; -1 if there is none. */
function intervalAt(line, t, reach = 0) {
  const [first, last] = visible(line, t - reach, t + reach);
  let best = -1;
  let distance = Infinity;
  for (let i = first; i < last; i++) {
    const away = Math.max(0, line.start[i] - t, t - line.end[i]);
    if (away < distance || (away === distance && line.start[i] === t)) [best, distance] = [i, away];
  }
  return best;
}

/**
 * Level of detail: the share of each bin that the intervals of each look fill, as a Float32Array per look.
 *
 * The bins are [from + i * width, from + (i + 1) * width) for i below `bins`.
 */
function sharesOf(line, looks, from, width, bins) {
  const [first, last] = visible(line, from, from + bins * width);
  if (last - first > MANY * bins) return sharesBySums(line, looks, from, width, bins);
  const shares = Array.from({ length: looks }, () => new Float32Array(bins));
  for (let i = first; i < last; i++) {
    const own = shares[line.look[i]];
    const [low, high] = [(line.start[i] - from) / width, Math.min(bins, (line.end[i] - from) / width)];
    for (let bin = Math.max(0, Math.floor(low)); bin < high; bin++) own[bin] += Math.min(high, bin + 1) - Math.max(low, bin);
  }
  return shares;
}

const MANY = 4; // intervals per bin from which sums are faster

/** The same by differences of sums: the time depends on the number of bins only. */
function sharesBySums(line, looks, from, width, bins) {
  const places = Int32Array.from({ length: bins + 1 }, (_, bin) => upperBound(line.start, from + bin * width) - 1);
  return sumsOf(line, looks).map((sums, look) => {
    const before = (bin) => {
      const i = places[bin];
      return i < 0 ? 0 : sums[i] + (line.look[i] === look ? Math.min(from + bin * width, line.end[i]) - line.start[i] : 0);
    };
    const shares = new Float32Array(bins);
    for (let bin = 0, low = before(0), high = 0; bin < bins; bin++, low = high) {
      high = before(bin + 1);
      shares[bin] = (high - low) / width;
    }
    return shares;
  });
}

/** The time before each interval that intervals of each look fill. */
function sumsOf(line, looks) {
  if (line.sums?.length === looks) return line.sums;
  line.sums = Array.from({ length: looks }, (_, look) => {
    const sums = new Float64Array(line.start.length);
    for (let i = 1; i < sums.length; i++) sums[i] = sums[i - 1] + (line.look[i - 1] === look ? line.end[i - 1] - line.start[i - 1] : 0);
    return sums;
  });
  return line.sums;
}

/** The time in which a track works, as {start, end, sum}: `sum` is the time before each interval, and at last the whole. */
function busyOf(track) {
  return (track.busyTimes ??= makeBusy(track.spans));
}

function makeBusy({ start, end }) {
  const [starts, ends, sum] = [[], [], [0]];
  for (let i = 0; i < start.length; i++) {
    const open = starts.length - 1;
    if (open >= 0 && start[i] <= ends[open]) ends[open] = Math.max(ends[open], end[i]);
    else {
      starts.push(start[i]);
      ends.push(end[i]);
    }
  }
  starts.forEach((from, i) => sum.push(sum[i] + ends[i] - from));
  return { start: starts, end: ends, sum };
}

/** The time before t in which a track works. */
function busyBefore(busy, t) {
  const i = upperBound(busy.start, t) - 1;
  return i < 0 ? 0 : busy.sum[i] + Math.min(t, busy.end[i]) - busy.start[i];
}

/** Busy share of a track in equal bins of [from, to], each averaged over `span` ms around it, but not before 0 or after `last`. */
function movingShares(track, from, to, bins, span, last) {
  const busy = busyOf(track);
  return Array.from({ length: bins }, (_, i) => {
    const middle = from + ((to - from) * (i + 0.5)) / bins;
    const reach = Math.max(span, (to - from) / bins) / 2;
    const [low, high] = [Math.max(0, middle - reach), Math.min(last, middle + reach)];
    return high > low ? Math.min(1, (busyBefore(busy, high) - busyBefore(busy, low)) / (high - low)) : 0;
  });
}
