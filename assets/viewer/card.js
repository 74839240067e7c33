// The card that explains a token, a span or a wait.

const RULES = {
  ratio: "ratio, min(1, p/q)",
  match: "match, same token",
  target: "target's own draw",
  typical: "typical (lossy)",
};
const WAITS = {
  draft: "waits for the drafter",
  verify: "waits for the target",
  communication: "waits for data to be moved",
  queue: "waits for its turn",
  host: "idle, no device works",
};
const FATES = {
  rejected: "Its token was rejected: the work was wasted.",
  discarded: "Its token was discarded untested: the work was wasted.",
  cancelled: "The forward was cancelled: the work was wasted.",
  open: "Its token is not decided yet.",
  unknown: "The file does not say whether its tokens were accepted.",
};
const BANDS = {
  both: "both busy",
  draft: "only the drafter works",
  target: "only the target works",
  none: "neither works",
};

const IMPORTED = {
  accepted: "The target accepted this draft token.",
  rejected: "The target rejected this draft token.",
  discarded: "It was drafted beside or after a rejected token, or after the end of the text: the target did not decide on it.",
  corrected: "A draft token was rejected here; the target's own token takes its place.",
  plain: "No draft was verified here: it is the target's own token.",
};

const NAMELESS = {
  rejected: "The target rejected a draft token here; the file does not say which.",
  discarded: "A token was drafted here after the rejected one, or after the end of the text; the file does not say which.",
};

/** A sentence that explains the outcome of a token. */
function story(run, row) {
  if (run.imported && IMPORTED[row.outcome]) return (row.id === null && NAMELESS[row.outcome]) || IMPORTED[row.outcome];
  const p = probability(row.p);
  const proposed = copyOf(run, row) ? "It was copied" : "The drafter proposed it";
  const q = probability(row.q);
  const tested = row.rule === "ratio" && row.chance !== null && row.chance !== undefined
    ? `The drafter drew it with q = ${q}; the target gives it p = ${p}. It is kept with probability min(1, p/q) = ${probability(row.chance)}`
    : "";
  switch (row.outcome) {
    case "accepted":
      if (row.rule === "typical") return `${proposed}, and the target finds it probable enough: p is more than min(ε, δ·exp(−H)). Nothing was drawn, so the text does not follow p.`;
      if (tested) return `${tested}, and the draw u = ${probability(row.u)} fell below it.`;
      return run.greedy
        ? `${proposed} and it is the target's most probable token, so it is kept.`
        : `${proposed} and the target's own draw at this place was the same token, so it is kept.`;
    case "rejected":
      if (row.rule === "typical") return `${proposed}, but p is not more than min(ε, δ·exp(−H)): the target does not find it probable enough.`;
      if (tested) return `${tested}, and the draw u = ${probability(row.u)} did not fall below it.`;
      return run.greedy
        ? `${proposed}, but another token is the target's most probable one here.`
        : `${proposed}, but the target's own draw at this place was another token.`;
    case "discarded":
      if (row.rule === "typical") return "The target finds it probable enough, but another path of such tokens is longer, or as long and likelier: it takes this one's place.";
      return "It was drafted ahead, but a token before it was rejected, another token was kept in its place, or the text ended: it was discarded untested.";
    case "corrected":
      if (row.rule === "typical") return "No draft was probable enough here; the token that the target itself drew from p takes its place.";
      if (run.greedy) return "A draft was rejected here; the target's most probable token takes its place.";
      return row.rule === "ratio"
        ? "A draft was rejected here; this token was drawn from the residual distribution norm(max(0, p − q))."
        : "A draft was rejected here; the token that the target itself drew takes its place.";
    case "bonus":
      return "Every draft was accepted, and the same target forward gave this token, too.";
    default:
      return "No draft was tested here: one target forward, one token of its own.";
  }
}

function facts(pairs) {
  return el("dl", { class: "ss-facts" },
    pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
      .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** The acceptance test as a gauge: filled up to the probability of acceptance, with a tick at the draw u. */
function gauge(row) {
  if (row.chance === null || row.chance === undefined || row.u === null || row.u === undefined) return null;
  if (row.rule !== "ratio") return null;
  return el("div", { class: "ss-gauge", "aria-hidden": "true" },
    el("span", { class: "ss-gauge-fill", style: `width:${100 * row.chance}%` }),
    el("span", { class: `ss-gauge-tick ss-gauge-${row.outcome}`, style: `left:${100 * row.u}%` }));
}

function topList(run, name, list, chosen) {
  if (!list || !list.length) return null;
  return el("div", { class: "ss-top" }, el("h5", {}, name), el("ol", {}, list.map(([id, share]) =>
    el("li", { class: id === chosen ? "ss-chosen" : "" }, el("span", { class: "ss-top-bar", style: `width:${100 * Math.min(1, share ?? 0)}%` }),
      el("span", { class: "ss-top-text" }, quoted(run.pieces[id] ?? `id ${id}`)),
      el("span", { class: "ss-top-share" }, probability(share))))));
}

/** The rejected drafts whose place a corrected token takes. */
function rejectedNote(run, row) {
  if (row.outcome !== "corrected") return null;
  const lost = run.ghosts.filter((g) => g.outcome === "rejected" && g.sequence === row.sequence && g.step === row.step && g.position === row.position && g.text);
  if (!lost.length) return null;
  return el("p", {}, lost.length > 1 ? "Rejected drafts: " : "The rejected draft: ",
    lost.slice(0, 5).flatMap((g, i) => [i ? ", " : "", el("s", { class: "ss-ink ss-rejected" }, quoted(g.text))]), lost.length > 5 ? ", …" : "");
}

function deviceOf(run, row) {
  const place = row.verify >= 0 ? findSpan(run, row.verify) : null;
  return place ? place.track.label : "";
}

function tokenCard(run, row) {
  const ghost = row.outcome === "rejected" || row.outcome === "discarded";
  const copy = row.node >= 0 ? copyOf(run, row) : undefined;
  return [
    el("h4", {}, el("span", { class: `ss-ink ss-${row.outcome}` }, quoted(row.text)),
      el("span", { class: "ss-chip" }, outcomeOf(row)), row.rule === "typical" ? lossyBadge(run) : null),
    el("p", {}, story(run, row)),
    rejectedNote(run, row),
    copy ? copyNote(run, copy, row) : null,
    gauge(row),
    facts([
      ["p", row.p === null ? "" : probability(row.p)],
      ["q", row.q === null ? "" : probability(row.q)],
      ["min(1, p/q)", row.rule === "ratio" && row.chance !== null ? probability(row.chance) : ""],
      ["u", row.u === null ? "" : probability(row.u)],
      ["rule", RULES[row.rule] ?? ""],
      ["device", deviceOf(run, row)],
      ["token id", row.id === -1 ? "unknown" : row.id],
      ["position", row.position],
      ["step", run.imported ? row.step || "prefill" : row.step],
      ["place in the draft", row.node >= 0 ? row.node + 1 : ""],
      ["time", run.timed ? ms(row.t) : "unknown"],
      ["since last commit", ghost || !run.timed || row.gap === undefined ? "" : ms(row.gap)],
    ]),
    el("div", { class: "ss-tops" },
      topList(run, "target, top 5", row.top_p, row.id), topList(run, "drafter, top 5", row.top_q, row.id)),
  ];
}

/** A count; -1 stands for one that the file of an imported run does not hold. */
const known = (count) => (count < 0 ? "unknown" : count);

function spanCard(run, { track, index }) {
  const spans = track.spans;
  const fate = spans.fate[index];
  const { rows, copies } = linked(run, { span: spans.id[index] });
  const tokens = [...rows];
  const lost = isLost(fate), kind = KINDS[spans.kind[index]];
  return [
    el("h4", {}, swatch(kindsOf(spans)[index], lost, fate === "cancelled"), spans.kind[index], el("span", { class: "ss-chip" }, track.label)),
    FATES[fate] && kind.drafts || fate === "cancelled" ? el("p", {}, (lost && fate !== "cancelled" && kind.vain) || FATES[fate]) : null,
    ...copies.map((copy) => copyNote(run, copy)),
    facts([
      ...lasting(spans.start[index], spans.end[index]),
      ...(track.role === "requests" ? [["requests", spans.rows[index]]] : [["step", spans.step[index] || "prefill"],
        ["batch", ["first", "second"][spans.batch?.[index]]],
        ["rows", known(spans.rows[index])], ["rows cached", known(spans.context[index])]]),
      ...poolFacts(run, spans.id[index]),
      ...(track.role === "requests" ? [] : [["span", spans.id[index]]]),
    ]),
    tokens.length
      ? el("p", { class: "ss-span-tokens" }, tokens.slice(0, 16).map((row) =>
        el("span", { class: `ss-ink ss-${row.outcome}` }, quoted(row.text))), tokens.length > 16 ? "…" : "")
      : null,
  ];
}

const lasting = (from, to) => [["duration", ms(to - from)], ["from", ms(from)], ["to", ms(to)]];

const waitCard = (track, [from, to, reason]) => [
  el("h4", {}, swatch(`wait-${reason}`), WAITS[reason] ?? reason, el("span", { class: "ss-chip" }, track.label)), facts(lasting(from, to))];

const bandCard = ([kind, from, to]) => [el("h4", {}, swatch(`band-${kind}`), BANDS[kind] ?? kind), facts(lasting(from, to))];

function swatch(kind, lost = false, cancelled = false) {
  const look = cancelled ? " ss-called-off" : lost ? " ss-lost" : "";
  const node = el("i", { class: `ss-swatch ss-k-${kind}${look}`, "aria-hidden": "true" });
  if (kind in KINDS) node.style.cssText = `--ss-fill: var(--ss-${kind}); --ss-edge: var(--ss-${kind}-edge)`;
  return node;
}

/** The one floating card of a viewer. */
class Card {
  constructor(root) {
    this.node = el("div", { class: "ss-float", role: "tooltip", id: `ss-card-${Math.random().toString(36).slice(2)}`, popover: "manual" });
    root.append(this.node);
  }

  /** Show content beside a rectangle of the viewport. */
  show(content, box, pinned) {
    this.node.replaceChildren(...content.filter(Boolean));
    this.node.classList.toggle("ss-pinned", pinned);
    if (pinned) this.node.append(el("p", { class: "ss-hint" }, "pinned · Esc closes it"));
    lift(this.node, box);
  }

  hide() {
    lower(this.node);
  }
}
