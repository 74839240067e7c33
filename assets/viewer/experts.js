// Mixtures of experts: how many experts a forward reads, by its rows. Each further row reads more of them, until all are read.

INSETS.push(() => new PerRun((run) => run.experts?.length, () => new ExpertsCard()));

const EXPERTS_WORDS = {
  rows: "Tokens that one forward computes: the drafts of a verification and the token before them.",
  experts: "Experts that these rows chose, in all layers together. One for all rows is not counted.",
  "per row": "Experts read for each row: fewer where rows share them.",
};

/** The card of one run. */
class ExpertsCard {
  constructor() {
    chartCard(this, "ss-audit ss-experts");
    this.body = el("div", { class: "ss-audit-body" });
    this.node.replaceChildren(this.head, this.body, this.note);
  }

  update(run) {
    const shown = JSON.stringify(run.experts);
    entitle(this, "Experts read by a forward");
    if (shown === this.shown) return;
    this.shown = shown;
    const nameOf = ({ model, device, held }) => `${device.includes(model) ? device : `${model} on ${device}`}: ${number(held, 0)} experts in all layers`;
    const names = [...new Set(run.experts.map(nameOf))];
    this.body.replaceChildren(...names.map((name) => el("div", scrolls(name), expertsTable(name, run.experts.filter((row) => nameOf(row) === name)))));
    this.note.textContent = expertsSentence(run.experts);
  }
}

function expertsTable(name, rows) {
  const bar = ({ experts, held }) => drawn("svg", { class: "ss-audit-strip", viewBox: "0 0 96 16", "aria-hidden": "true" },
    drawnLine(0, 8, 96, 8), drawn("rect", { class: "ss-experts-bar", x: 0, y: 3, width: Math.max(1, (96 * experts) / held), height: 10 }));
  const node = table(name, defined(["rows", "forwards", "experts", "", "per row", "ms"], EXPERTS_WORDS), rows.map((row) =>
    [number(row.rows, 0), number(row.forwards, 0), number(row.experts, 1), bar(row), number(row.each, 1), number(row.ms, 2)]));
  node.caption.className = ""; // it is seen, too
  return node;
}

/** What the widest verification of the target reads beside its narrowest forward. */
function expertsSentence(all) {
  const rows = all.filter(({ model, device }) => model === "target" && device === all.find((row) => row.model === "target").device);
  const [narrow, wide] = [rows[0], rows.at(-1)];
  if (!narrow || narrow === wide) return "";
  const words = ({ rows: count, experts, ms }) => `${some(count, "row")} read ${number(experts, 1)} experts in ${number(ms, 2)} ms`;
  return `A forward of the target of ${words(narrow)}, one of ${words(wide)}.`;
}
