// The tables: figures with their definitions, and the data of the timeline for readers who cannot use the chart.

const MOST_ROUNDS = 500;

function table(caption, head, rows, numeric = true) {
  return el("table", { class: numeric ? "ss-table" : "ss-table ss-table-text" },
    el("caption", { class: "ss-sr" }, caption),
    el("thead", {}, el("tr", {}, head.map((cell) => el("th", { scope: "col", title: cell.title }, cell.label ?? cell)))),
    el("tbody", {}, rows.map(([first, ...rest]) =>
      el("tr", {}, el("th", { scope: "row", title: first?.title }, first?.label ?? first), rest.map((cell) => el("td", {}, cell))))));
}

const outputOf = (run) => `${run.lossy ? "lossy, " : ""}${comparedOf(run)}`;

function comparedOf(run) {
  if (run.baseline) return "baseline";
  if (!run.identity) return "–";
  if (run.identity.same) return "identical";
  return run.greedy || run.lossy ? `differs at ${run.identity.at + 1}` : "other draws";
}

/** The short table (a row per run), and a fold with all figures and their definitions. */
function figureTables(model) {
  const main = model.figures.filter((figure) => figure.main);
  const short = table("Figures of all runs", ["method", ...main.map((f) => ({ label: f.label, title: f.definition })), "output"],
    model.runs.map((run) => [runName(run), ...main.map((f) =>
      (f.key === "speedup" && run.fastest ? el("b", { class: "ss-best" }, run.figures[f.key]) : run.figures[f.key])), outputOf(run)]));
  const all = table("All figures with their definitions", ["figure", ...model.runs.map(runName), "definition"],
    model.figures.map((f) => [f.label, ...model.runs.map((run) => run.figures[f.key]), el("span", { class: "ss-definition" }, f.definition)]));
  return [el("div", { class: "ss-scroll", ...scrolls("Figures of all runs") }, short), el("details", { class: "ss-fold" }, el("summary", {}, "All figures with their definitions"), el("div", { class: "ss-wide", ...scrolls("All figures with their definitions") }, all))];
}

/** The timeline as tables, made when the fold is first opened. */
function timelineTable(model) {
  const body = el("div", { class: "ss-wide", ...scrolls("The timeline as a table") });
  const fold = el("details", { class: "ss-fold" }, el("summary", {}, "The timeline as a table"), body);
  fold.addEventListener("toggle", () => {
    if (fold.open) body.replaceChildren(...model.runs.flatMap(runTables));
  });
  return fold;
}

function runTables(run) {
  const work = run.tracks.flatMap((track) => [...workOf(track), ...waitsOf(track)]);
  const from = (r) => run.copies.filter((copy) => copy.step === r.step && copy.sequence === r.sequence)
    .map((copy) => `${sourceName(run, copy)}, token ${copy.start + 1}`)[0] ?? "–";
  const pooled = (r) => {
    const row = run.ngrams.find((other) => other.step === r.step && other.sequence === r.sequence);
    return row ? [row.tried.length, row.gained.length, row.size] : ["–", "–", "–"];
  };
  const looked = (r) => {
    const fan = run.fans.find((other) => other.step === r.step && other.sequence === r.sequence);
    return fan ? [fan.guesses.token.length, fan.result] : ["–", "–"];
  };
  const expected = (r) => {
    const row = run.forecasts.find((other) => other.step === r.step && other.sequence === r.sequence);
    return row ? [row.match, number(row.score, 2), ...(withDrafter ? [number(row.drafter, 2)] : [])] : ["–", "–", ...(withDrafter ? ["–"] : [])];
  };
  const withDrafter = run.forecasts.some((row) => row.drafter !== null);
  const rounds = run.rounds.slice(0, MOST_ROUNDS).map((r) => [r.step, r.mode, r.drafted, r.accepted, r.emitted, run.timed ? ms(r.t) : "unknown",
    ...(run.copies.length ? [from(r)] : []), ...(run.ngrams.length ? pooled(r) : []), ...(run.fans.length ? looked(r) : []),
    ...(run.forecasts.length ? expected(r) : [])]);
  const columns = ["step", "mode", "drafted", "accepted", "emitted", "time", ...(run.copies.length ? ["copied from"] : []),
    ...(run.ngrams.length ? ["n-grams tried", "n-grams gained", "in the pool"] : []), ...(run.fans.length ? ["branches", "lookup"] : []),
    ...(run.forecasts.length ? ["match", "expected of a copy", ...(withDrafter ? ["of the drafter"] : [])] : [])];
  const more = run.rounds.length - rounds.length;
  return [
    el("h4", {}, runName(run)),
    el("p", { class: "ss-headline" }, run.headline.map((part) => el("span", {}, `${part.label} ${part.percent} %`))),
    table(`Work and waiting per device, ${runName(run)}`, ["device", "work or wait", "count", "total", "mean", "longest"], work),
    ...loadTable(run),
    ...poolTable(run),
    el("details", { class: "ss-fold" }, el("summary", {}, `${run.rounds.length} rounds`),
      table(`Rounds, ${runName(run)}`, columns, rounds),
      more > 0 ? el("p", { class: "ss-hint" }, `The first ${MOST_ROUNDS} are shown; ${more} follow.`) : null),
  ];
}

/** The measured load of the devices; nothing without samples. */
function loadTable(run) {
  const tracks = run.tracks.filter((track) => track.measured);
  if (!tracks.length) return [];
  return [table(`Measured load per device, ${runName(run)}`, ["device", "source", "samples", "mean load", "most memory", "mean power"],
    tracks.map(({ label, measured: m }) => [label, m.label, number(m.samples.length, 0), m.busy === null ? "–" : `${Math.round(100 * m.busy)} %`,
      `${number(m.memory / 2 ** 30, 2)} GiB`, m.power === null ? "–" : `${number(m.power, 0)} W`]))];
}

function summary(label, name, lengths) {
  const total = lengths.reduce((sum, length) => sum + length, 0);
  return [label, name, number(lengths.length, 0), ms(total), ms(total / lengths.length), ms(lengths.reduce((most, length) => Math.max(most, length), 0))];
}

function grouped(keys, lengths) {
  const groups = new Map();
  keys.forEach((key, i) => (groups.get(key) ?? groups.set(key, []).get(key)).push(lengths[i]));
  return [...groups];
}

function workOf({ label, spans }) {
  const names = spans.kind.map((kind, i) => kind + (spans.fate[i] === "cancelled" ? ", cancelled" : isLost(spans.fate[i]) ? ", discarded" : ""));
  return grouped(names, spans.start.map((start, i) => spans.end[i] - start)).map(([name, lengths]) => summary(label, name, lengths));
}

function waitsOf({ label, waits }) {
  return grouped(waits.map((w) => WAITS[w[2]] ?? w[2]), waits.map(([from, to]) => to - from))
    .map(([name, lengths]) => summary(label, name, lengths));
}

/** The legend of colours and lines; only those that the runs contain. */
function legend(model) {
  const item = (kind, label, lost) => el("li", {}, swatch(kind, lost), label);
  const tracks = model.runs.flatMap((run) => run.tracks);
  const kinds = new Set(tracks.flatMap((track) => kindsOf(track.spans)));
  const fates = new Set(tracks.flatMap((track) => track.spans.fate));
  const lost = [...fates].some((fate) => isLost(fate) && fate !== "cancelled");
  const reasons = new Set(tracks.flatMap((track) => track.waits.map((w) => w[2])));
  const outcomes = new Set(model.runs.flatMap((run) => run.tokens.map((token) =>
    (token.outcome === "accepted" && token.rule === "typical" ? "accepted typical" : token.outcome))));
  const ink = (outcome, label) => el("li", {}, el("span", { class: `ss-ink ss-${outcome}` }, label));
  const bands = new Set(model.runs.flatMap((run) => run.band.map(([kind]) => kind)));
  return el("ul", { class: "ss-legend", "aria-label": "Legend" },
    Object.keys(KINDS).filter((k) => kinds.has(k)).map((k) => item(k, KINDS[k].words ?? k)),
    lost ? item("draft", "discarded work", true) : null,
    fates.has("cancelled") ? el("li", {}, swatch("verify", true, true), "cancelled work") : null,
    ["verify", "draft", "communication", "queue", "host"].filter((r) => reasons.has(r)).map((r) => item(`wait-${r}`, WAITS[r])),
    bands.has("both") ? item("band-both", "both busy") : null,
    outcomes.has("accepted") ? ink("accepted", "accepted draft") : null,
    outcomes.has("accepted typical") ? ink("accepted ss-typical", "accepted as typical (lossy)") : null,
    outcomes.has("corrected") || outcomes.has("bonus") ? ink("bonus", "from the target") : null,
    model.runs.some((run) => run.ghosts.length) ? ink("rejected", "rejected draft") : null,
    ...(model.runs.some((run) => run.copies.length)
      ? [el("li", {}, el("span", {}, el("span", { class: "ss-match" }, "matched"), el("span", { class: "ss-source" }, " and copied")))] : []));
}
