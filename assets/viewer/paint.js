// Painting the timeline on a canvas. A scene is {ctx, from, to, width, pixel (ms), x(t), colours, hatches}.

const BIN = 2; // pixels per bin of merged spans
const CROWDED = 2; // mean pixels per span below which a lane's spans are merged
const MARKS = {
  plain: ["ring", "muted"],
  accepted: ["square", "accepted"],
  rejected: ["cross", "rejected"],
  corrected: ["ring", "bonus"],
  bonus: ["ring", "bonus"],
};

/** Fit a canvas to the screen, on which a pixel has `ratio` device pixels; return the scene of a window on it. */
function sceneOn(canvas, width, height, ratio, [from, to], looks) {
  const [wide, high] = [width, height].map((side) => Math.round(side * ratio));
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  const pixel = (to - from) / width;
  return { ctx, from, to, width, pixel, x: (t) => (t - from) / pixel, ...looks };
}

/** Paint the cards of a window. Return the number of merged spans, and the ms of a bin. */
function paint(scene, place) {
  const { ctx, width } = scene;
  let merged = 0;
  ctx.clearRect?.(0, 0, width, place.height);
  for (const card of place.cards) {
    ctx.save();
    ctx.translate(0, card.body);
    paintAxis(scene, card);
    for (const row of card.rows) merged += PAINT[row.type](scene, row, card.run) ?? 0;
    ctx.restore();
  }
  return { merged, bin: BIN * scene.pixel };
}

const PAINT = {
  band: (scene, row, run) => paintLine(scene, bandLine(run), row.y, row.height, BAND_KINDS.map((kind) => ({ fill: scene.colours[`band-${kind}`] }))),

  track: (scene, row) => {
    paintWaits(scene, row);
    const { lines, looks } = lanesOf(row.track);
    const styles = looks.map((look) => styleOf(look, scene));
    return lines.reduce((sum, line, lane) => sum + paintLine(scene, line, row.y + SIZE.lane * lane + 1, SIZE.lane - 2, styles), 0);
  },

  strip: (scene, row, run) => {
    const [low, high] = [Math.max(scene.from, 0), Math.min(scene.to, run.to)];
    if (high <= low) return;
    const bins = Math.max(1, Math.min(600, Math.round((high - low) / scene.pixel / 3)));
    const at = (i) => low + ((high - low) * i) / bins;
    const shares = movingShares(row.track, low, high, bins, run.to * AVERAGE, run.to);
    const side = row.track.role === "drafter" ? "draft" : "verify";
    paintSteps(scene, row, shares.map((share, i) => ({ start: at(i), end: at(i + 1), share })), scene.colours[`strip-${side}`]);
  },

  measured: (scene, row) => {
    paintSteps(scene, row, loadSteps(row.track, scene.from, scene.to, scene.pixel), scene.colours.line, scene.colours.muted);
  },

  clock: () => 0, // a label only

  tokens: (scene, row, run) => {
    if (!covers(run, scene.from, scene.to)) {
      paintNumbers(scene, row, run);
      return;
    }
    row.marks = tokenMarks(run, scene.from, scene.to, scene.pixel);
    for (const mark of row.marks) paintMark(scene, mark, row.y + row.height / 2);
  },
};

function paintAxis({ ctx, from, to, width, x, colours }, { bodyHeight: height }) {
  const ticks = roundTicks(from, to, width, Math.max(60, Math.min(100, width / 7)));
  const decimals = ticks.length > 1 ? Math.max(0, -Math.floor(Math.log10(ticks[1] - ticks[0]) + 1e-9)) : 0;
  ctx.font = "11px system-ui, sans-serif";
  ctx.textAlign = "center";
  ctx.textBaseline = "top";
  for (const t of ticks) {
    const at = Math.round(x(t)) + 0.5;
    const text = number(t, decimals);
    const half = ctx.measureText(text).width / 2;
    ctx.fillStyle = Math.abs(t) < 1e-9 ? colours.muted : colours.grid;
    ctx.fillRect(at - 0.5, 0, 1, height);
    ctx.fillStyle = colours.muted;
    ctx.fillRect(at - 0.5, height, 1, 4);
    ctx.fillText(text, Math.max(half, Math.min(width - half, at)), height + 7);
  }
}

/** Paint the intervals of a line: single bars, or shares of bins if they are crowded. Return the number merged. */
function paintLine(scene, line, top, height, styles) {
  const [first, last] = visible(line, scene.from, scene.to);
  const span = last > first ? Math.min(scene.to, line.end[last - 1]) - Math.max(scene.from, line.start[first]) : 0;
  if ((last - first) * CROWDED * scene.pixel > span && last - first > 50) {
    paintShares(scene, line, top, height, styles);
    return last - first;
  }
  paintBars(scene, line, first, last, top, height, styles);
  return 0;
}

// Many rectangles are much faster one by one than as one path: a path is rastered with all of its edges at once.
function paintBars({ ctx, x, width }, line, first, last, top, height, styles) {
  styles.forEach(({ fill, edge }, look) => {
    [ctx.fillStyle, ctx.strokeStyle] = [fill, edge ?? fill];
    for (let i = first; i < last; i++) {
      if (line.look[i] !== look) continue;
      const left = Math.max(-4, x(line.start[i]));
      const wide = Math.max(1, Math.min(width + 4, x(line.end[i])) - left);
      ctx.fillRect(left, top, wide, height);
      if (wide > 4 && edge) ctx.strokeRect(left + 0.5, top + 0.5, wide - 1, height - 1);
    }
  });
}

/** Paint the share of each bin that each look fills, stacked from below. The bins stay in place while the window moves. */
function paintShares({ ctx, x, from, to, pixel }, line, top, height, styles) {
  const bin = BIN * pixel;
  const start = Math.floor(from / bin) * bin;
  const bins = Math.ceil((to - start) / bin);
  const low = new Float32Array(bins);
  sharesOf(line, styles.length, start, bin, bins).forEach((shares, look) => {
    ctx.fillStyle = styles[look].fill;
    for (let i = 0; i < bins; i++) {
      const share = Math.min(1 - low[i], shares[i]);
      if (share <= 0) continue;
      low[i] += share;
      ctx.fillRect(x(start + i * bin), top + height * (1 - low[i]), BIN, height * share);
    }
  });
}

/** Paint the waits of at least a pixel, with an edge where the reason changes. Host gaps inside a longer wait have none. */
function paintWaits({ ctx, x, from, to, width, pixel, colours, hatches }, row) {
  const line = waitLine(row.track);
  const [first, last] = visible(line, from, to);
  const [top, height] = [row.y + 1, row.height - 2];
  const edges = [];
  ctx.fillStyle = hatches.wait;
  let [reached, current] = [-Infinity, -1];
  for (let i = first; i < last; i++) {
    const [start, end, reason] = [line.start[i], line.end[i], line.look[i]];
    if (end - start < pixel) continue;
    const left = Math.max(0, x(start));
    ctx.fillRect(left, top, Math.min(width, x(end)) - left, height);
    if (start - reached > pixel) current = -1;
    reached = end;
    if (REASONS[reason] === "host" || reason === current) continue;
    current = reason;
    edges.push([x(start), reason]);
  }
  for (const [left, reason] of edges) {
    ctx.fillStyle = colours[`wait-${REASONS[reason]}`];
    ctx.fillRect(left, top, 3, height);
  }
}

/** Paint shares of a row's height over time, with a base line. */
function paintSteps({ ctx, x, colours }, { y, height }, steps, fill, edge) {
  if (!steps.length) return;
  const bottom = y + height;
  ctx.fillStyle = colours.line;
  ctx.fillRect(x(steps[0].start), bottom - 0.5, x(steps.at(-1).end) - x(steps[0].start), 1);
  ctx.fillStyle = fill;
  for (const { start, end, share } of steps) ctx.fillRect(x(start), bottom - share * height, x(end) - x(start), share * height);
  if (!edge) return;
  ctx.fillStyle = edge;
  for (const { start, end, share } of steps) ctx.fillRect(x(start), bottom - share * height - 0.5, x(end) - x(start), 1);
}

/** Paint how many tokens the rounds of each bin emit, in place of marks. */
function paintNumbers(scene, row, run) {
  row.marks = [];
  const { rows } = roundLine(run);
  const width = 3 * scene.pixel;
  const counts = new Float64Array(Math.ceil((scene.to - scene.from) / width) + 1);
  const [first, last] = roundsIn(run, scene.from, scene.to);
  for (const { t, emitted } of rows.slice(first, last)) counts[Math.floor((t - scene.from) / width)] += emitted;
  const most = counts.reduce((a, b) => Math.max(a, b), 1);
  const steps = Array.from(counts, (n, i) => ({ start: scene.from + i * width, end: scene.from + (i + 1) * width, share: n / most }));
  paintSteps(scene, row, steps, scene.colours.accepted);
}

function paintMark({ ctx, x, colours }, { row, x: t, size, dense }, y) {
  const [shape, colour] = MARKS[row.outcome];
  const [at, half] = [x(t), size / 2];
  ctx.fillStyle = ctx.strokeStyle = colours[colour];
  if (dense) return ctx.fillRect(at - 0.75, y - half, 1.5, size); // no shape is seen
  if (!ctx.stamp) return paintShape(ctx, shape, at, y, half);
  return ctx.stamp(row.outcome, size, at, y, (own, middle) => {
    own.fillStyle = own.strokeStyle = colours[colour];
    paintShape(own, shape, middle, middle, half);
  });
}

function paintShape(ctx, shape, at, y, half) {
  if (shape === "square") return ctx.fillRect(at - half, y - half, 2 * half, 2 * half);
  ctx.lineWidth = 1.8;
  ctx.beginPath();
  if (shape === "ring") ctx.arc(at, y, half, 0, 2 * Math.PI);
  else {
    ctx.moveTo(at - half, y - half);
    ctx.lineTo(at + half, y + half);
    ctx.moveTo(at + half, y - half);
    ctx.lineTo(at - half, y + half);
  }
  ctx.stroke();
  ctx.lineWidth = 1;
}

/** The fill and the edge of spans of one look. */
function styleOf({ kind, lost, cancelled }, { colours, hatches }) {
  const hatch = cancelled ? "cancelled" : lost ? "lost" : kind === "pre-verify" ? "striped" : "";
  return { fill: hatch ? hatches[hatch](kind) : colours[kind], edge: colours[`${kind}-edge`] };
}
