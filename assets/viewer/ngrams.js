// Look-ahead window and pool of n-grams: the window of one round, the n-grams that it tried, and those that it gained.

const MOST_GRAMS = 24;
INSETS.push((viewer) => new PerRun((run) => run.ngrams.length, () => new NgramsView(viewer)));

/** Window and pool of one run: the round that replay has reached, or the one pointed at. */
class NgramsView {
  constructor(viewer) {
    largeCard(this, viewer, "ss-grams", "Look-ahead and n-grams");
  }

  update(run) {
    this.rounds = run.ngrams;
    entitle(this, "Look-ahead and n-grams", `the ${run.ngrams[0].model} looks ahead`, this.large);
  }

  show(row) {
    this.note.textContent = ngramsSentence(row);
    this.body.replaceChildren(windowTable(this.run, row), triedList(this.run, row), gainedList(this.run, row));
  }
}

/** A sentence about a round. */
function ngramsSentence({ step, tried, gained, size }) {
  const best = Math.max(0, ...tried.map(({ accepted }) => accepted));
  const outcome = tried.length ? `, of the best one ${some(best, "token")} accepted` : "";
  return `Step ${step}: ${some(tried.length, "n-gram")} tried${outcome}; ${some(gained.length, "n-gram")} gained, ${number(size, 0)} in the pool.`;
}

const gramText = (run, id) => run.pieces[id] ?? `#${id}`;

/** A token as a small box; invisible characters are shown as signs. */
function gramToken(run, id, look = "") {
  const text = gramText(run, id);
  return el("span", { class: `ss-gram-token ${look}`, title: quoted(text) }, text.trim() ? text.trim() : quoted(text));
}

/** The window: a row per level, then the model's predictions. In a full window each column is an n-gram. */
function windowTable(run, { window }) {
  if (!window.length) return el("div", {}, el("h4", {}, "Look-ahead window"), el("p", { class: "ss-hint" }, "No columns are left: the output ends here."));
  const name = (level) => (level === window.length - 1 ? "predicted" : `level ${level + 1}`);
  return el("div", { class: "ss-grams-window" }, el("h4", {}, "Look-ahead window"),
    el("div", { class: "ss-wide", ...scrolls("Look-ahead window") }, el("table", {},
      el("caption", { class: "ss-sr" }, `Look-ahead window, ${window.length} levels and ${window[0].length} columns`),
      el("tbody", {}, window.map((row, level) => el("tr", {}, el("th", { scope: "row" }, name(level)),
        row.map((id) => el("td", {}, gramToken(run, id)))))))));
}

/** The n-grams tried: the token before them, then their accepted and their lost tokens. */
function triedList(run, { tried }) {
  const look = (i, accepted) => (i === 0 ? "ss-gram-first" : i <= accepted ? "ss-gram-accepted" : "ss-gram-lost");
  const label = ({ ids, accepted }) => `after ${quoted(gramText(run, ids[0]))}: ${ids.slice(1).map((id) => quoted(gramText(run, id))).join(" ")}, ${accepted} accepted`;
  return gramList("Tried from the pool", "no n-gram of the pool begins with that token", tried.map((gram) =>
    el("li", { "aria-label": label(gram) }, gram.ids.map((id, i) => gramToken(run, id, look(i, gram.accepted))))));
}

function gainedList(run, { gained }) {
  const more = gained.length - MOST_GRAMS;
  const items = gained.slice(-MOST_GRAMS).reverse().map((ids) => el("li", {}, ids.map((id, i) => gramToken(run, id, i ? "" : "ss-gram-first"))));
  if (more > 0) items.push(el("li", { class: "ss-hint" }, `and ${more} more`));
  return gramList("Gained, the latest first", "none in this round", items);
}

function gramList(title, none, items) {
  return el("div", {}, el("h4", {}, title), items.length ? el("ul", { tabindex: "0", "aria-label": title }, items) : el("p", { class: "ss-hint" }, none));
}
