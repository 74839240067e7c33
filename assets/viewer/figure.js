// The timeline as data: the geometry in pixels, and the plotly figure of one window. Pure functions.

const MOST_BARS = 5000;
const BIN = 6; // pixels per value of an occupancy strip
const AVERAGE = 1 / 14; // share of the run over which a value of the strip is averaged
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

/** The plotly traces and layout of a window. `colours` are resolved CSS colours; `width` the plot's pixels. */
function figure(model, place, [from, to], colours, width) {
  const traces = [];
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", barmode: "overlay", bargap: 0, showlegend: false,
    margin: { l: 0, r: 0, t: 0, b: 0 }, height: place.height, hovermode: false, dragmode: "zoom",
    font: { family: "system-ui, sans-serif", size: 11, color: colours.muted }, barcornerradius: 1.5,
  };
  const detail = gatherBars(place, from, to);
  place.cards.forEach((card, i) => {
    const n = i ? i + 1 : "";
    Object.assign(layout, axes(place, card, n, [from, to], colours));
    const on = { xaxis: `x${n}`, yaxis: `y${n}`, hoverinfo: "skip" };
    for (const row of card.rows) {
      const draw = DRAW[row.type];
      traces.push(...draw(card, row, { from, to, colours, pixel: (to - from) / width }).map((t) => ({ ...t, ...on })));
    }
  });
  return { traces, layout, detail };
}

/** Put the bars to draw into every row, shares of bins if they are too many. Return their number, and a bin's ms. */
function gatherBars(place, from, to) {
  const rows = place.cards.flatMap((card) => card.rows.filter((row) => row.type === "track" || row.type === "band")
    .map((row) => Object.assign(row, { looks: row.type === "band" ? bandIn(card.run.band, from, to) : barsIn(row.track, from, to) })));
  const looks = rows.flatMap((row) => row.looks);
  const count = looks.reduce((sum, look) => sum + look.bars.length, 0);
  if (count <= MOST_BARS) return { count, bin: 0 };
  const bins = Math.max(20, Math.min(500, Math.floor(MOST_BARS / looks.length)));
  for (const row of rows) row.looks = shareBars(row.looks, from, to, bins);
  return { count, bin: (to - from) / bins };
}

function axes(place, card, n, range, colours) {
  const bottom = card.body + card.bodyHeight;
  return {
    [`xaxis${n}`]: {
      anchor: `y${n}`, range: [...range], matches: n ? "x" : undefined, side: "bottom", zeroline: true,
      zerolinecolor: colours.muted, zerolinewidth: 1, gridcolor: colours.grid, ticks: "outside", ticklen: 4,
      tickcolor: colours.muted, tickfont: { color: colours.muted, size: 11 }, nticks: 12, fixedrange: false,
      separatethousands: true, exponentformat: "none",
    },
    [`yaxis${n}`]: {
      anchor: `x${n}`, domain: [1 - bottom / place.height, 1 - card.body / place.height],
      range: [card.bodyHeight, 0], fixedrange: true, visible: false,
    },
  };
}

function bars(rects, marker) {
  return {
    type: "bar", orientation: "h", textposition: "none", cliponaxis: true,
    base: rects.map((r) => r.start), x: rects.map((r) => r.end - r.start),
    y: rects.map((r) => r.y), width: rects.map((r) => r.height), marker,
  };
}

const DRAW = {
  band: (card, row, { colours }) => row.looks.filter((look) => look.bars.length)
    .map((look) => bars(look.bars.map((bar) => inLane(bar, row.y, row.height)), { color: colours[`band-${look.kind}`], line: { width: 0 } })),

  track: (card, row, scene) => [...waitTraces(row, scene), ...spanTraces(row, scene)],

  strip: (card, row, { from, to, colours, pixel }) => {
    const [low, high] = [Math.max(from, 0), Math.min(to, card.run.to)];
    if (high <= low) return [];
    const bottom = row.y + row.height;
    const bins = Math.max(1, Math.min(400, Math.round((high - low) / pixel / BIN)));
    const at = (i) => low + ((high - low) * i) / bins;
    const shares = movingShares(row.track, low, high, bins, card.run.to * AVERAGE);
    const x = [low, ...shares.flatMap((_, i) => [at(i), at(i + 1)]), high];
    const y = [bottom, ...shares.flatMap((s) => [bottom - s * row.height, bottom - s * row.height]), bottom];
    const side = row.track.role === "drafter" ? "draft" : "verify";
    return [
      { type: "scatter", mode: "lines", x: [low, high], y: [bottom, bottom], line: { width: 1, color: colours.line } },
      { type: "scatter", mode: "lines", x, y, fill: "toself", fillcolor: colours[`strip-${side}`], line: { width: 0 } },
    ];
  },

  measured: (card, row, { from, to, colours }) => {
    const bottom = row.y + row.height;
    const steps = sampleSteps(row.track.measured.samples, from, to);
    if (!steps.length) return [];
    const x = [steps[0].start, ...steps.flatMap((s) => [s.start, s.end]), steps.at(-1).end];
    const y = [bottom, ...steps.flatMap((s) => [bottom - s.share * row.height, bottom - s.share * row.height]), bottom];
    return [
      { type: "scatter", mode: "lines", x: [x[0], x.at(-1)], y: [bottom, bottom], line: { width: 1, color: colours.line } },
      { type: "scatter", mode: "lines", x, y, fill: "toself", fillcolor: colours.line, line: { width: 1, color: colours.muted } },
    ];
  },

  tokens: (card, row, { colours, pixel, from, to }) => {
    row.marks = thinned(tokenMarks(card.run, pixel).filter((mark) => mark.x >= from && mark.x <= to), pixel);
    const y = row.y + row.height / 2;
    return Object.entries(MARKS).map(([outcome, [symbol, colour]]) => {
      const marks = row.marks.filter((mark) => mark.row.outcome === outcome);
      const line = { width: symbol === "square" ? 0 : 1.8, color: colours[colour] };
      return { type: "scatter", mode: "markers", x: marks.map((m) => m.x), y: marks.map(() => y),
        marker: { symbol, size: marks.map((m) => m.size), color: colours[colour], line, opacity: 1 } };
    }).filter((trace) => trace.x.length);
  },
};

const MARKS = {
  plain: ["circle-open", "muted"],
  accepted: ["square", "accepted"],
  rejected: ["x-thin", "rejected"],
  corrected: ["circle-open", "bonus"],
  bonus: ["circle-open", "bonus"],
};

/** Measured shares as steps inside a window: a sample holds for the time since the one before it. */
function sampleSteps(samples, from, to) {
  const usual = samples.length > 1 ? samples[1][0] - samples[0][0] : 0;
  return samples.map(([t, share], i) => ({ start: Math.max(from, i ? samples[i - 1][0] : t - usual), end: Math.min(to, t), share }))
    .filter((step) => step.end > step.start);
}

function waitTraces(row, { from, to, colours, pixel }) {
  const visible = row.track.waits.filter(([a, b]) => b >= from && a <= to && b - a >= pixel);
  const box = { y: row.y + row.height / 2, height: row.height - 2 };
  const hatch = { shape: "/", size: 7, solidity: 0.18, fgcolor: colours.hatch, bgcolor: "rgba(0,0,0,0)", fillmode: "replace" };
  const traces = visible.length
    ? [bars(visible.map(([start, end]) => ({ start, end, ...box })), { color: colours.hatch, pattern: hatch, line: { width: 0 } })]
    : [];
  const firsts = waitStarts(visible, pixel);
  for (const reason of new Set(firsts.map((wait) => wait[2]))) {
    const edges = firsts.filter((wait) => wait[2] === reason).map(([start]) => ({ start, end: start + 3 * pixel, ...box }));
    traces.push(bars(edges, { color: colours[`wait-${reason}`], line: { width: 0 } }));
  }
  return traces;
}

/** The waits that get an edge: those where the reason changes. Host gaps inside a longer wait do not count. */
function waitStarts(waits, pixel) {
  let reached = -Infinity;
  let current = "";
  return waits.filter(([start, end, reason]) => {
    if (start - reached > pixel) current = "";
    reached = end;
    if (reason === "host" || reason === current) return false;
    current = reason;
    return true;
  });
}

function spanTraces(row, { colours, pixel }) {
  const rectOf = (bar) => inLane(bar, row.y + SIZE.lane * bar.lane + 1, SIZE.lane - 2);
  return row.looks.flatMap(({ kind, lost, cancelled, bars: shown }) => {
    const widths = shown.filter((bar) => bar.low === undefined).map((bar) => bar.end - bar.start).sort((a, b) => a - b);
    const wide = widths[widths.length >> 1] > 5 * pixel;
    const line = { width: 1, color: colours[`${kind}-edge`] };
    const fill = bars(shown.map(rectOf), { color: colours[kind], line: wide ? line : { width: 0 }, pattern: patternOf(kind, lost, cancelled, colours) });
    if (wide || !widths.length) return [fill];
    return [fill, bars(joined(shown, pixel).map(rectOf), { color: "rgba(0,0,0,0)", line })];
  });
}

/** A bar's rectangle in its lane; a bar of shares has only its part of the height. */
function inLane({ start, end, low = 0, high = 1 }, top, height) {
  return { start, end, y: top + height * (1 - (low + high) / 2), height: height * (high - low) };
}

function patternOf(kind, lost, cancelled, colours) {
  const base = { bgcolor: colours[kind], fgcolor: colours[`${kind}-edge`], fillmode: "replace" };
  if (cancelled) return { ...base, bgcolor: colours.card, fgcolor: colours[kind], shape: "/", size: 5, solidity: 0.45 };
  if (lost) return { ...base, shape: "x", size: 6, solidity: 0.28 };
  return kind === "pre-verify" ? { ...base, shape: "|", size: 5, solidity: 0.3 } : undefined;
}

/** One mark per token and rejected draft; the marks of one commit are side by side and end at its time. */
function tokenMarks(run, pixel) {
  const groups = new Map();
  const lost = run.ghosts.filter((ghost) => ghost.outcome === "rejected");
  for (const row of ofChosen(run, [...run.tokens, ...lost])) {
    if (!groups.has(row.t)) groups.set(row.t, []);
    groups.get(row.t).push(row);
  }
  const times = [...groups.keys()].sort((a, b) => a - b);
  const widths = times.map((t, i) => (i ? (t - times[i - 1]) / pixel / groups.get(t).length : 8));
  const size = Math.max(5, Math.min(8, widths.sort((a, b) => a - b)[widths.length >> 2] ?? 8));
  return times.flatMap((t) => {
    const rows = groups.get(t).sort((a, b) => a.position - b.position || (a.outcome === "rejected" ? -1 : 1));
    return rows.map((row, i) => ({ row, size: size - 1.5, x: t - ((rows.length - 1 - i) * size + size / 2) * pixel }));
  });
}

/** If there are too many marks, keep one of each outcome per 3 pixels. */
function thinned(marks, pixel) {
  if (marks.length < 1500) return marks;
  return [...new Map(marks.map((mark) => [`${mark.row.outcome} ${Math.floor(mark.x / (3 * pixel))}`, mark])).values()];
}
