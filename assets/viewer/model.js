// Pure functions on the viewer's document, whose fields traces/view describes.

/** The value of a name from a file, or undefined; never what all objects have, such as `constructor`. */
const named = (values, name) => (Object.hasOwn(values, name) ? values[name] : undefined);

/** The step of the last round that has ended at time t; 0 before the first. */
function stepAt(run, t) {
  return run.rounds.reduce((last, r) => (r.t <= t ? Math.max(last, r.step) : last), 0);
}

/** The copies judged by the last round that has ended at time t. */
function copiesAt(run, t) {
  const step = run.copies.length ? stepAt(run, t) : 0;
  return run.copies.filter((copy) => copy.step === step);
}

/** The distinct times of all runs' `commits` or `rejections`, ascending. */
function moments(model, kind) {
  const times = model.runs.flatMap((run) =>
    run.long ? run.rounds.filter((round) => kind === "commits" || round.accepted < round.drafted).map((round) => round.t)
    : kind === "commits"
      ? run.tokens.map((token) => token.t)
      : run.ghosts.filter((ghost) => ghost.outcome === "rejected").map((ghost) => ghost.t));
  return [...new Set(times)].sort((a, b) => a - b);
}

/** The entry of an ascending list next to t in the given direction, or undefined. */
function neighbour(times, t, direction) {
  return direction > 0 ? times.find((x) => x > t + 1e-9) : times.findLast((x) => x < t - 1e-9);
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

/** The tokens and ghosts that each span drafted or decided, by the span's id. */
function rowsOfSpan(run) {
  if (run.bySpan) return run.bySpan;
  run.bySpan = new Map();
  for (const row of [...run.tokens, ...run.ghosts]) {
    for (const id of new Set([row.draft, row.verify])) {
      if (id === undefined || id < 0) continue;
      if (!run.bySpan.has(id)) run.bySpan.set(id, []);
      run.bySpan.get(id).push(row);
    }
  }
  return run.bySpan;
}

/** The tokens, spans and copies to highlight with a token, a ghost or a span. */
function linked(run, item) {
  const rows = item.span === undefined ? [item.token] : rowsOfSpan(run).get(item.span) ?? [];
  const spans = new Set(rows.flatMap((row) => [row.draft, row.verify]).filter((id) => id >= 0));
  if (item.span !== undefined) spans.add(item.span);
  const copies = [...new Set(rows.map((row) => copyOf(run, row)).filter(Boolean))];
  return { rows: new Set(rows), spans, copies };
}
