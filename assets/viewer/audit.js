// Acceptance audit: the drafts that the recorded rule keeps on average beside those that were kept, by place and over time.

const AUDIT = { width: 96, height: 16, dot: 4, deviations: 3 };
INSETS.push(() => new PerRun(({ audit }) => audit && (audit.sentence || audit.whole.deviation), () => new AuditCard())); // else all is certain

/** The card of one run. */
class AuditCard {
  constructor() {
    chartCard(this, "ss-audit");
    this.body = el("div", {});
    this.node.replaceChildren(this.head, auditLegend(), this.body);
  }

  update(run) {
    const shown = JSON.stringify(run.audit);
    entitle(this, "Acceptance audit");
    if (shown === this.shown) return;
    this.shown = shown;
    const { sentence, rules, whole, places, stretches } = run.audit;
    const groups = [["by place in the draft", [{ ...whole, name: "all" }, ...places]], ["over time", stretches]].filter(([, rows]) => rows.length);
    const left = whole.unknown ? ` Of ${number(whole.unknown, 0)} tests nothing is known: each counts as 0 to 1 expected.` : "";
    this.body.replaceChildren(
      el("div", { class: "ss-audit-body" }, groups.map(([name, rows]) => el("div", scrolls(`Acceptance audit ${name}`), auditTable(name, rows)))),
      el("p", { class: `ss-detail${sentence ? " ss-audit-sentence" : ""}` }, sentence || `No contradiction to ${rules.join(" or ")}.`, left));
  }
}

const auditTable = (name, rows) => table(`Acceptance audit ${name}`, defined(["", "tested", "expected", "accepted", "z", ""], AUDIT_WORDS), rows.map((row) =>
  [row.name, number(row.tested, 0), auditExpected(row), number(row.kept, 0), row.z === null ? "–" : number(row.z, 1), auditStrip(row)]));

const auditExpected = ({ low, high }) => (high - low < 0.05 ? number(low, 1) : `${number(low, 1)} to ${number(high, 1)}`);

/** The places of a row's marks, in pixels from the left: the expected range with its deviations, and the accepted share. */
function auditMarks({ tested, low, high, deviation, kept }) {
  const at = (count) => (AUDIT.width * Math.min(tested, Math.max(0, count))) / tested;
  const [from, to] = [at(low - AUDIT.deviations * deviation), at(high + AUDIT.deviations * deviation)];
  return { from, wide: Math.max(2, to - from), dot: at(kept), away: kept < low - AUDIT.deviations * deviation || kept > high + AUDIT.deviations * deviation };
}

function auditStrip(row) {
  const { width, height, dot } = AUDIT;
  const marks = auditMarks(row);
  return drawn("svg", { class: `ss-audit-strip${marks.away ? " ss-audit-away" : ""}`, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    drawnLine(0, height / 2, width, height / 2),
    drawn("rect", { x: marks.from, y: 2, width: marks.wide, height: height - 4 }),
    drawn("circle", { cx: marks.dot, cy: height / 2, r: dot }));
}

const AUDIT_WORDS = {
  tested: "Tested drafts; tokens behind the first rejection were never tested.",
  expected: "The sum of the chances that the recorded rule gives these drafts.",
  accepted: "Those that were accepted.",
  z: "How far the accepted ones are from the expected ones, in standard deviations.",
};

const auditLegend = () => legendOf("Legend of the acceptance audit", [
  ["ss-calibration-key-accepted", "accepted share of the tests"], ["ss-audit-key-expected", "expected by the recorded rule, ± 3 standard deviations"]]);
