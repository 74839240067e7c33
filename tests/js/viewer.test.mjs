// Unit tests of the viewer's pure scripts: `node --test tests/js`.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { createContext, runInContext } from "node:vm";

const scripts = ["packed", "columns", "model", "dom", "insets", "batch", "geometry", "gantt", "calibration", "audit", "long", "aligned", "alignedpart"];
const viewer = createContext({});
for (const name of scripts) {
  runInContext(readFileSync(new URL(`../../assets/viewer/${name}.js`, import.meta.url), "utf8"), viewer);
}
const names = `unpack stepAt copiesAt moments neighbour findSpan sourceOf copiedPlaces sourceTexts rowsOfSpan linked
  upperBound lineOf visible intervalAt sharesOf sharesBySums busyOf busyBefore movingShares
  calibrationBins calibrationSentence CALIBRATION auditMarks AUDIT
  geometry fitWindow roundTicks loadSteps tokenMarks SIZE Gantt
  LongRuns covers roundsIn AlignedPart`.split(/\s+/);
const own = runInContext(`({ ${names.join(", ")} })`, viewer);

/** A value of the scripts' own realm as plain data. */
const plain = (value) => JSON.parse(JSON.stringify(value));
const equal = (value, expected) => assert.deepEqual(plain(value), expected);

const spans = (...rows) => ({
  id: rows.map((_, i) => i), start: rows.map((r) => r[0]), end: rows.map((r) => r[1]),
  kind: rows.map(() => "draft"), fate: rows.map(() => "kept"), lane: rows.map(() => 0),
});
const track = (more) => ({ label: "drafter", role: "drafter", lanes: 1, measured: null, waits: [], spans: spans(), ...more });
const run = (more) => ({ tokens: [], ghosts: [], rounds: [], copies: [], ngrams: [], sources: [], tracks: [], headline: [], sequences: [0], band: [], ...more });

test("columns of a sent document become rows again, absent fields and texts too", () => {
  const sent = { runs: [{
    tokens: { rows: 2, columns: { id: [7, 8], text: { names: ["a", "b"], codes: [1, 0] }, q: [0.5, null] }, absent: { q: [1] } },
    ghosts: [], rounds: { rows: 0, columns: {}, absent: {} }, lengths: [],
    band: { rows: 2, tuples: [{ names: ["both"], codes: [0, 0] }, [0, 1], [1, 2]] },
    tracks: [{ waits: { rows: 1, tuples: [[1], [2], { names: ["queue"], codes: [0] }] }, spans: { id: [1], kind: { names: ["draft"], codes: [0] } } }],
  }] };
  const [read] = plain(own.unpack(sent)).runs;
  assert.deepEqual(read.tokens, [{ id: 7, text: "b", q: 0.5 }, { id: 8, text: "a" }]);
  assert.deepEqual([read.rounds, read.band], [[], [["both", 0, 1], ["both", 1, 2]]]);
  assert.deepEqual(read.tracks, [{ waits: [[1, 2, "queue"]], spans: { id: [1], kind: ["draft"] } }]);
  equal(own.unpack({ runs: [plain(read)] }).runs[0], read);
});

test("rounds, copies and moments are those that have ended", () => {
  const r = run({
    rounds: [{ t: 1, step: 1 }, { t: 3, step: 2 }], copies: [{ step: 1, at: "a" }, { step: 2, at: "b" }],
    tokens: [{ t: 3 }, { t: 1 }, { t: 3 }], ghosts: [{ t: 2, outcome: "rejected" }, { t: 4, outcome: "discarded" }],
  });
  assert.deepEqual([0, 1, 2.9, 9].map((t) => own.stepAt(r, t)), [0, 1, 1, 2]);
  equal(own.copiesAt(r, 3), [{ step: 2, at: "b" }]);
  equal(own.moments({ runs: [r] }, "commits"), [1, 3]);
  equal(own.moments({ runs: [r] }, "rejections"), [2]);
  assert.deepEqual([own.neighbour([1, 2, 3], 2, 1), own.neighbour([1, 2, 3], 2, -1), own.neighbour([1], 1, 1)], [3, 1, undefined]);
});

test("a copy that reaches the end of its sequence continues with its own first token", () => {
  const copy = { document: -1, sequence: 0, position: 10, start: 8, match: 3, length: 5, step: 1 };
  equal(own.copiedPlaces(copy, { node: 3 }), { from: 5, start: 8, end: 10, exact: 9 });
  equal(own.copiedPlaces({ ...copy, document: 2 }, { node: 3 }), { from: 5, start: 8, end: 13, exact: 11 });
  equal(own.copiedPlaces(copy, undefined).exact, -1);
  const r = run({ sources: [{ document: -1, sequence: 0, texts: ["a", "b"] }], tokens: [{ sequence: 0, position: 2, text: "c" }] });
  assert.equal(own.sourceTexts(r, copy, 1, 4), "bc");
});

test("a span highlights its tokens, a token both of its spans", () => {
  const [kept, lost] = [{ draft: 0, verify: 1, sequence: 0, step: 1 }, { draft: 0, verify: -1, sequence: 0, step: 2 }];
  const r = run({ tokens: [kept], ghosts: [lost], tracks: [track({ spans: spans([0, 1], [1, 2]) })] });
  assert.equal(own.linked(r, { span: 0 }).rows.size, 2);
  equal([...own.linked(r, { token: kept }).spans], [0, 1]);
  equal([...own.linked(r, { token: lost }).spans], [0]);
  assert.equal(own.findSpan(r, 1).index, 1);
  assert.equal(own.findSpan(r, 5), null);
});

test("searches in a line find what touches a window, and the nearest interval", () => {
  const line = own.lineOf(3, (i) => [[0, 1, 0, 0], [2, 3, 1, 1], [3, 5, 0, 2]][i]);
  assert.deepEqual([-1, 1, 2, 9].map((t) => own.upperBound([1, 2, 2, 3], t)), [0, 1, 3, 4]);
  equal(own.visible(line, 1, 2), [0, 2]);
  assert.deepEqual([0.5, 1.5, 3, 6].map((t) => own.intervalAt(line, t)), [0, -1, 2, -1]);
  assert.deepEqual([own.intervalAt(line, 1.6, 0.5), own.intervalAt(line, 6, 2)], [1, 2]);
});

test("the shares of bins are the same by intervals and by sums", () => {
  const line = own.lineOf(40, (i) => [i, i + (i % 3) / 2, i % 2, i]);
  for (const [from, width, bins] of [[0, 4, 10], [-3, 0.7, 60], [10.3, 9, 2]]) {
    const [a, b] = [own.sharesOf(line, 2, from, width, bins), own.sharesBySums(line, 2, from, width, bins)];
    for (let look = 0; look < 2; look++) {
      a[look].forEach((share, i) => assert.ok(Math.abs(share - b[look][i]) < 1e-5, `${from} ${look} ${i}`));
    }
  }
});

test("shares add up to the work, and those of many bars are the means of finer ones", () => {
  const three = [[0, 3, 0, 0], [3, 5, 1, 1], [5, 6, 0, 2]];
  equal(own.sharesOf(own.lineOf(3, (i) => three[i]), 2, 0, 4, 2).map((row) => [...row]), [[0.75, 0.25], [0.25, 0.25]]);
  const line = own.lineOf(900, (i) => [i + (i % 3) / 10, i + 0.4 + (i % 7) / 20, i % 3, i]);
  const [coarse, fine] = [[20.5, 16], [2.05, 160]].map(([width, bins]) => own.sharesOf(line, 3, 30.3, width, bins));
  coarse.forEach((shares, look) => shares.forEach((share, i) => {
    const mean = fine[look].slice(10 * i, 10 * i + 10).reduce((sum, one) => sum + one) / 10;
    assert.ok(Math.abs(share - mean) < 1e-5, `${look} ${i}: ${share} ${mean}`);
  }));
});

test("overlapping spans count once in a track's working time", () => {
  const t = track({ spans: spans([0, 2], [1, 3], [5, 6]) });
  const busy = own.busyOf(t);
  assert.deepEqual([0, 1, 4, 5.5, 9].map((at) => own.busyBefore(busy, at)), [0, 1, 3, 3.5, 4]);
  equal(own.movingShares(t, 0, 6, 2, 1, 6), [1, 1 / 3]);
  assert.equal(own.busyBefore(own.busyOf(track({ spans: spans([0, 5], [1, 2], [8, 9]) })), 9), 6, "one lies inside of another");
});

test("a card has a row per track and strip, and cards do not overlap", () => {
  const measured = { label: "cpu:0", samples: [] };
  const shown = [track({ label: "drafter · clock n1" }), track({ role: "target", lanes: 2, measured }), track({ role: "requests" })];
  const model = { runs: [run({ headline: [{ kind: "both" }] }), run({})] };
  const { cards, height } = own.geometry(model, () => shown);
  equal(cards[0].rows.map((row) => row.type), ["band", "track", "strip", "clock", "track", "strip", "measured", "track", "tokens"]);
  equal(cards[0].rows.slice(1).map((row, i) => row.y >= cards[0].rows[i].y + cards[0].rows[i].height), Array(8).fill(true));
  equal(cards[0].rows.filter((row) => row.type === "track").map((row) => row.height / own.SIZE.lane), [1, 2, 1]);
  assert.equal(cards[1].rows[0].type, "track", "no overlap band without a drafter");
  assert.equal(cards[1].top, cards[0].height + own.SIZE.between);
  assert.equal(height, cards[1].top + cards[1].height);
  assert.equal(own.geometry({ runs: [] }, () => []).height, 0);
});

test("the frame of a span is in the span's lane", () => {
  const target = track({ device: "b", lanes: 2, spans: { ...spans([0, 4], [1, 3]), lane: [0, 1] } });
  const shown = run({ id: "r", tracks: [track({ device: "a" }), target] });
  const place = own.geometry({ runs: [shown] }, () => shown.tracks);
  const [first, second] = [0, 1].map((span) => own.Gantt.prototype.rectOf.call({ place, x: (t) => 10 * t }, run({ id: "r", tracks: [target] }), span));
  assert.deepEqual([second.left, second.right, second.top - first.top], [10, 30, own.SIZE.lane]);
});

test("ticks are round numbers inside of the window", () => {
  equal(own.roundTicks(0, 10, 500, 100), [0, 2, 4, 6, 8, 10]);
  equal(own.roundTicks(3, 3.9, 300, 100), [3, 3.5]);
  equal(own.roundTicks(0.3, 2.2, 400, 100), [0.5, 1, 1.5, 2]);
  equal(own.fitWindow({ axis: { min: -90, max: 100 } }).map(Math.round), [-4, 100]);
  equal(own.fitWindow({ axis: { min: -10, max: 100 } }), [-10.5, 100.49999999999999]);
});

test("measured loads hold since the sample before, and become means where they are dense", () => {
  const t = track({ measured: { samples: [[1, 0.5], [2, 1], [3, 0]] } });
  equal(own.loadSteps(t, 0, 3, 0.01).map((s) => [s.start, s.end, s.share]), [[0, 1, 0.5], [1, 2, 1], [2, 3, 0]]);
  const [mean] = own.loadSteps(t, 0, 3, 3);
  assert.equal(mean.share, 0.5);
});

test("the marks of one commit are side by side and end at its time; a dense window keeps one per outcome", () => {
  const token = (t, position, outcome = "accepted") => ({ t, position, outcome, sequence: 0 });
  const marks = own.tokenMarks(run({ tokens: [token(10, 0), token(10, 1), token(20, 2, "bonus")] }), 0, 30, 0.1);
  equal(marks.map((m) => m.row.position), [0, 1, 2]);
  assert.ok(marks[0].x < marks[1].x && marks[1].x < 10);
  const many = run({ tokens: Array.from({ length: 4000 }, (_, i) => token(i, i, i % 2 ? "bonus" : "plain")) });
  const dense = own.tokenMarks(many, 0, 4000, 40);
  assert.ok(dense.length <= 2 * (Math.ceil(4000 / 120) + 1) && dense.every((m) => m.dense));
  equal([...new Set(dense.map((m) => m.row.outcome))].sort(), ["bonus", "plain"]);
});

test("a bin of the calibration is at its mean q and its share, and says both", () => {
  const bins = { low: [0.2, 0.9], tested: [2, 8], accepted: [1, 8], q: [0.25, 0.95], expected: [0.75, null], least: [0.1, 0.5], most: [0.9, 1] };
  const { size, counts } = own.CALIBRATION;
  const [low, high] = plain(own.calibrationBins({ bins, tested: 10 }));
  [[low.x, 0.25], [low.y, 0.5], [low.low, 0.9], [low.high, 0.1], [low.expected, 0.25]].forEach(([at, share]) => assert.ok(Math.abs(at - size * share) < 1e-9));
  assert.deepEqual([high.x, high.y, high.expected, high.count, low.count], [size * 0.95, 0, null, counts, counts / 4]);
  assert.equal(low.text.replace(/\u2009/g, " "), "q from 0.2 to 0.3, 0.25 on average: 1 of 2 tested tokens accepted, 50 % (95 % interval 10 to 90 %), 75 % expected by the rule. 20 % of the tests.");
  assert.ok(!high.text.includes("expected"), "no rule draws at temperature 0");
});

test("a row of the audit has its expected share with three deviations, and its accepted share", () => {
  const row = { tested: 100, low: 40, high: 50, deviation: 5, kept: 66 };
  const { width } = own.AUDIT;
  const { from, wide, dot, away } = own.auditMarks(row);
  [[from, 0.25], [wide, 0.4], [dot, 0.66]].forEach(([at, share]) => assert.ok(Math.abs(at - width * share) < 1e-9));
  equal([away, own.auditMarks({ ...row, kept: 65 }).away, own.auditMarks({ ...row, kept: 24 }).away], [true, false, true]);
  const sure = own.auditMarks({ tested: 10, low: 10, high: 10, deviation: 0, kept: 9 });
  equal([sure.from, sure.wide, sure.away], [width, 2, true]);
});

test("the sentence of a place names its tests, its error, and what does not count", () => {
  const place = { place: 2, tested: 1200, accepted: 900, q: 0.5, expected: 0.7, error: 0.25 };
  assert.equal(own.calibrationSentence(place), "Place 2: 1200 tested tokens, q 0.50 on average, 75 % accepted, 70 % expected by the rule; "
    + "expected calibration error 0.250. Tokens behind the first rejection were never tested and do not count.");
  assert.match(own.calibrationSentence({ ...place, place: 0, expected: null }), /^All places: .* 75 % accepted; expected calibration/);
});

/** The ranges of steps that a window of a long run asks for, one after the other, until its tokens are here. */
function asked(rounds, range) {
  const long = run({ long: {}, rounds, part: { first: 0, last: 0 } }), ranges = [];
  const ask = Object.assign(Object.create(own.LongRuns.prototype), { viewer: { gantt: { range } } });
  for (let query = ask.missing(long); query && ranges.length < 5; query = ask.missing(long)) {
    const [first, last] = query.steps;
    long.part = { first, last };
    ranges.push([first, last]);
  }
  return { ranges, here: own.covers(long, ...range) };
}

test("a window asks once for its rounds, also where steps of several sequences are not in the order of time", () => {
  const order = Array.from({ length: 60 }, (_, i) => [5 * i + 1, 5 * i + 3, 5 * i + 4, 5 * i + 5, 5 * i + 2]).flat();
  const rounds = order.map((step, t) => ({ step, t }));
  for (let from = 1; from < 280; from++) {
    for (const width of [0, 1, 2, 4, 9]) {
      const { ranges, here } = asked(rounds, [from - 0.1, from + width + 0.1]);
      assert.ok(here && ranges.length <= 1 && ranges.every(([first, last]) => first <= last), `${from} + ${width}: ${ranges}`);
    }
  }
});

test("one step of many sequences is asked for whole, a wide window not at all", () => {
  const rounds = Array.from({ length: 900 }, (_, i) => ({ step: 1 + Math.floor(i / 300), t: 1 + Math.floor(i / 300) }));
  equal(asked(rounds, [1.9, 2.1]), { ranges: [[2, 2]], here: true });
  equal(asked(rounds, [0, 4]), { ranges: [], here: false });
});

/** A long run: its rounds by [t, emitted, sequence]; a sequence's first `early` tokens are of a prefill. */
function longRun(id, early, ...list) {
  const rounds = list.map(([t, emitted, sequence = 0], i) => ({ step: i + 1, t, emitted, sequence }));
  const first = Array.from({ length: early }, () => ({ step: 0, t: 0, sequence: 0 }));
  const tokens = [...first, ...rounds.flatMap(({ emitted, ...own }) => Array.from({ length: emitted }, () => own))]
    .map((token, index) => ({ ...token, index, text: `${id}${index}` }));
  return { run: run({ id, title: id, long: {}, rounds, part: { first: 2, last: 3 }, tokens: tokens.filter(({ step }) => step === 2 || step === 3) }), tokens };
}

test("a window's tokens are aligned with the same ones of the others; only steps that are not here are asked for", async () => {
  const one = longRun("a", 1, [1, 3], [2, 0], [3, 2], [4, 1, 1], [5, 2]);
  const two = longRun("b", 0, [1, 1, 1], [2, 1], [6, 1], [7, 1], [8, 1], [9, 1], [10, 1], [11, 1], [12, 1]);
  const texts = [one, two].map(({ tokens }) => tokens.filter((token) => token.sequence === 0));
  const same = 6;
  const aligned = [{ rows: [{ sequence: 0, same: 8, reason: "", length: 8, begin: 0 }, { sequence: 0, same, reason: "", length: 8, begin: 2 }, { sequence: -1, same: 0, reason: "another prompt", length: 0, begin: 0 }] }];
  const runs = [one.run, two.run, run({ id: "c", title: "c" })];
  for (let from = -1; from < 6; from++) for (let to = from; to < 7; to++) {
    const asked = [];
    const source = { rounds: async (id, low, high) => {
      asked.push([id, low, high]);
      const { tokens } = id === "a" ? one : two;
      return { tokens: tokens.filter(({ step }) => step >= low && step <= high) };
    } };
    const part = new own.AlignedPart({ gantt: { range: [from, to] }, options: { source } }, () => { part.active = false; });
    part.look = () => undefined;
    assert.ok(part.update({ state: "ready", runs, aligned }));
    await part.next();
    const inside = texts[0].filter(({ t }) => from <= t && t <= to);
    const first = texts[0].indexOf(inside[0]);
    const end = first + inside.length;
    const rows = inside.length ? part.rows().map(({ tokens, gap, first: before }) => [tokens.map(({ text }) => text), Array.from(gap), tokens.length ? before : first]) : [];
    const gaps = (text, last) => text.slice(first, last).map((token, k) => token.t - (first + k ? text[first + k - 1].t : 0));
    assert.deepEqual(plain(rows), inside.length ? [[texts[0], end], [texts[1], Math.min(end, same)]].map(([text, last]) =>
      [text.slice(first, last).map((token) => token.text), gaps(text, last), first]) : [], `${from} to ${to}`);
    assert.ok(asked.every(([, low, high]) => low < 2 || high > 3), `${asked} are not here`);
    const words = part.note();
    assert.equal(words.includes("move the window"), !inside.length);
    assert.equal(words.includes("b writes another text after token 6"), inside.length > 0 && end > same);
  }
});

test("an aligned part has as many tokens as requests may have rounds of", () => {
  const rounds = Array.from({ length: 2000 }, (_, t) => ({ step: 1 + Math.floor(t / 20), t, emitted: 1, sequence: t % 20 }));
  const runs = [run({ long: {}, rounds }), run({ long: {}, rounds })];
  const view = { sequence: 0, same: 100, reason: "", length: 100, begin: 0 };
  const part = new own.AlignedPart({ gantt: { range: [0, 2000] }, options: { source: {} } });
  part.look = () => undefined;
  part.update({ state: "ready", runs, aligned: [{ rows: [view, view] }] });
  const { inside, rows } = part.wanted();
  assert.deepEqual([inside, rows.length], [100, 2]);
  for (const { end, steps } of rows) assert.ok(end >= 25 && 20 * (steps.high - steps.low + 1) <= 1000, `${end} tokens in ${plain(steps)}`);
});

test("of a sequence that arrives late, or stalls, the step before the window's tokens is asked for alone", async () => {
  const rounds = Array.from({ length: 6000 }, (_, i) => i + 1).flatMap((step) =>
    [0, 1].flatMap((sequence) => (!sequence || (step > 2000 && step < 3001) || step > 5000 ? [{ step, t: step, emitted: 1, sequence }] : [])));
  const first = { step: 0, sequence: 1, t: 1995, text: "first" };
  const runs = [run({ long: {}, rounds, part: { first: 0, last: 0 }, tokens: [first] })];
  const view = { sequence: 1, same: 2001, reason: "", length: 2001, begin: 1995 };
  const asked = [];
  const source = { rounds: async (id, low, high) => {
    asked.push([low, high]);
    return { tokens: rounds.filter(({ step, sequence }) => sequence === 1 && step >= low && step <= high).map((round) => ({ ...round, text: `${round.step}` })) };
  } };
  const shown = async (range) => {
    const part = new own.AlignedPart({ gantt: { range }, options: { source } }, () => { part.active = false; });
    part.look = () => undefined;
    part.update({ state: "ready", runs, aligned: [{ rows: [view] }] });
    await part.next();
    assert.equal(part.problem, "");
    const [row] = part.rows();
    return [row.first, row.tokens.map(({ text }) => text), Array.from(row.gap), asked.splice(0)];
  };
  equal(await shown([1996, 2003]), [1, ["2001", "2002", "2003"], [6, 1, 1], [[2001, 2003]]]);
  equal(await shown([1990, 2001]), [0, ["first", "2001"], [1995, 6], [[2001, 2001]]]);
  equal(await shown([4000, 5002]), [1001, ["5001", "5002"], [2001, 1], [[5001, 5002], [3000, 3000]]]);
});

test("a first run that cannot be aligned says why", () => {
  const part = new own.AlignedPart({ gantt: { range: [0, 1] }, options: { source: {} } });
  part.look = () => undefined;
  part.update({ state: "ready", runs: [run({ title: "a", long: {} }), run({ title: "b", long: {} })],
    aligned: [{ rows: [{ sequence: -1, same: 0, reason: "its token ids are unknown", length: 0, begin: 0 }, { sequence: -1, same: 0, reason: "its token ids are unknown", length: 0, begin: 0 }] }] });
  part.found = { ...part.wanted() };
  assert.equal(part.note(), "a cannot be aligned: its token ids are unknown.");
});
