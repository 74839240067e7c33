// The tables: figures with their definitions, and the data of the timeline for readers who cannot use the chart.

const MOST_ROUNDS = 500;

/** A table; a cell of the head is a text, or {label, title} with a definition. The first cell of a row is its head. */
function table(caption, head, rows) {
  return el("table", { class: "ss-table" },
    el("caption", { class: "ss-sr" }, caption),
    el("thead", {}, el("tr", {}, head.map((cell) => (cell === "" ? el("td") : el("th", { scope: "col", title: cell.title }, cell.label ?? cell))))),
    el("tbody", {}, rows.map(([first, ...rest]) => el("tr", {}, el("th", { scope: "row" }, first), rest.map((cell) => el("td", {}, cell))))));
}

/** The cells of a head whose words are defined. */
const defined = (names, words) => names.map((label) => label && { label, title: words[label] });

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
  return [el("div", { class: "ss-scroll", ...scrolls("Figures of all runs") }, short), fold("All figures with their definitions", "ss-wide", all)];
}

/** The timeline as tables, made when the fold is first opened. */
function timelineTable(model) {
  const node = fold("The timeline as a table", "ss-wide");
  node.addEventListener("toggle", () => {
    if (node.open) node.lastChild.replaceChildren(...model.runs.flatMap(runTables));
  });
  return node;
}

function runTables(run) {
  const work = partsIn([run], ({ tracks }) => tracks).map(({ track, name, parts }) => {
    const [count, total, mean] = statistics(parts);
    return [track.label, name, number(count, 0), ms(total), ms(mean), ms(parts.reduce((most, part) => Math.max(most, part), 0))];
  });
  const withDrafter = run.forecasts.some((row) => row.drafter !== null);
  const columns = [
    [run.copies, ["copied from"], (copy) => [`${sourceName(run, copy)}, token ${copy.start + 1}`]],
    [run.ngrams, ["n-grams tried", "n-grams gained", "in the pool"], ({ tried, gained, size }) => [tried.length, gained.length, size]],
    [run.fans, ["branches", "lookup"], (fan) => [fan.guesses.token.length, fan.result]],
    [run.forecasts, ["match", "expected of a copy", ...(withDrafter ? ["of the drafter"] : [])],
      (row) => [row.match, number(row.score, 2), ...(withDrafter ? [number(row.drafter, 2)] : [])]],
  ].filter(([rows]) => rows.length);
  const beside = (r) => columns.flatMap(([rows, heads, cells]) => {
    const row = rows.find((other) => other.step === r.step && other.sequence === r.sequence);
    return row ? cells(row) : heads.map(() => "–");
  });
  const rounds = run.rounds.slice(0, MOST_ROUNDS).map((r) => [r.step, r.mode, r.drafted, r.accepted, r.emitted, run.timed ? ms(r.t) : "unknown", ...beside(r)]);
  const more = run.rounds.length - rounds.length;
  return [
    el("h4", {}, runName(run)),
    el("p", { class: "ss-headline" }, run.headline.map((part) => el("span", {}, `${part.label} ${part.percent} %`))),
    table(`Work and waiting per device, ${runName(run)}`, ["device", "work or wait", "count", "total", "mean", "longest"], work),
    ...loadTable(run),
    ...poolTable(run),
    el("details", { class: "ss-fold" }, el("summary", {}, `${run.rounds.length} rounds`),
      table(`Rounds, ${runName(run)}`, ["step", "mode", "drafted", "accepted", "emitted", "time", ...columns.flatMap(([, heads]) => heads)], rounds),
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
