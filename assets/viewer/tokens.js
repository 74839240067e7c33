// The token panes: one card per run, with its text at time t.

const OUTCOMES = {
  accepted: "accepted draft",
  corrected: "corrected by the target",
  bonus: "bonus of the target",
  plain: "target's own token",
  rejected: "rejected draft",
  discarded: "discarded draft",
};

const outcomeOf = (row) => `${OUTCOMES[row.outcome] ?? row.outcome}${row.rule === "typical" ? ", typical" : ""}`;

/** The badge of a lossy run and of its lossy tokens. */
const lossyBadge = (run) => el("span", { class: "ss-badge ss-warn", title: run.lossy }, "lossy");

/** A pane. It calls `bus` for hovered and picked tokens. */
class Pane {
  constructor(bus) {
    this.bus = bus;
    this.shown = new Map(); // the node of a token, by the token's index
    this.rows = new Map(); // the row of a node
    this.pages = []; // in the order of the tokens
    this.count = 0; // tokens on the pages
    this.title = el("h3", { class: "ss-pane-title" });
    this.speed = el("span", { class: "ss-num" });
    this.marks = el("div", { class: "ss-marks" });
    this.planned = el("p", { class: "ss-note ss-planned", hidden: true });
    this.message = el("p", { class: "ss-message", hidden: true });
    this.verdict = el("div", { class: "ss-verdict", hidden: true });
    this.sources = new Sources();
    this.text = el("div", { class: "ss-text" });
    this.tree = new TreeInset(bus);
    this.root = el("section", { class: "ss-card ss-pane" },
      el("header", { class: "ss-pane-head" }, this.title, this.speed), this.marks, this.planned, this.message, this.sources.root, this.text, this.verdict, this.tree.root);
    this.reading = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) if (isIntersecting) target.page.open();
    }, { root: this.text, rootMargin: "600px 0px" });
    this.listen();
  }

  listen() {
    const steps = { ...STEPS, ArrowDown: 10, ArrowUp: -10 };
    const reached = (node) => (node.checkVisibility?.() ?? true) && !node.classList.contains("ss-future");
    new Marks(this.text, ".ss-token", (node) => node.dataset.index, (node, { type }) => {
      const token = this.rows.get(node);
      if (token) this.bus[type === "click" ? "pin" : "hover"]({ run: this.run, token }, node.getBoundingClientRect());
      else if (type === "pointerleave" || type === "focusout") this.bus.hover(null);
    }, { steps, reached });
  }

  /** Show a run; tokens that are shown already stay. */
  update(run, clocks) {
    const grows = this.run?.id === run.id && run.part === this.part && run.tokens.length >= this.count;
    if (!grows) this.clear();
    this.run = run;
    this.part = run.part;
    this.title.textContent = runName(run);
    this.speed.replaceChildren(...speedOf(run));
    this.marks.replaceChildren(...marksOf(run, clocks), ...sequenceChoice(run, (sequence) => this.bus.follow(run, sequence)));
    this.planned.textContent = run.planned;
    this.planned.hidden = !run.planned;
    this.root.setAttribute("data-status", run.status);
    this.root.classList.toggle("ss-part", Boolean(run.long));
    this.say(run);
    run.tokens.slice(0, this.count).forEach((token) => this.pageOf.get(token.index).renew(token));
    run.tokens.slice(this.count).forEach((token) => this.append(token));
    this.haunt(run);
    if (run.tokens.length <= EAGER) this.pages.forEach((page) => page.open());
    this.pages[0]?.open();
    this.pages.forEach((page) => page.write());
    this.sources.update(run);
    this.tree.update(run);
    const counts = new Map();
    for (const { sequence } of run.tokens) counts.set(sequence, (counts.get(sequence) ?? 0) + 1);
    for (const [sequence, part] of this.parts) if (part.tagName === "DETAILS") part.firstChild.replaceChildren(...sequenceHead(run, sequence, counts.get(sequence) ?? 0));
    this.label();
  }

  clear() {
    this.shown.clear();
    this.rows.clear();
    this.pages = [];
    this.pageOf = new Map(); // by index of the token
    this.parts = new Map(); // by sequence
    this.count = 0;
    this.ghosts = 0;
    this.text.replaceChildren();
    for (const name of ["role", "aria-label"]) this.text.removeAttribute(name);
  }

  say(run) {
    const text = run.error
      || (run.status === "cancelled" && "Stopped on request; the tokens decoded until then are shown.")
      || (run.long && partText(run))
      || (run.tokens.length === 0 && (run.status === "running" ? "Waiting for the first token…" : run.imported ? run.note : "No token was decoded."));
    this.message.textContent = text;
    this.message.hidden = !text;
    this.message.classList.toggle("ss-bad", run.status === "failed" || run.status === "incomplete");
    if (run.error) this.message.setAttribute("role", "alert");
    this.verdict.replaceChildren(...verdictNodes(run, this.bus.options.advise));
    this.verdict.hidden = !this.verdict.children.length;
  }

  append(token) {
    const home = this.home(token.sequence);
    let page = home.lastChild?.page;
    if (!page || page.tokens.length >= PAGE) page = this.newPage(home);
    page.add(token);
    this.pageOf.set(token.index, page);
    this.count++;
  }

  newPage(home) {
    const page = new Page(this);
    home.append(page.node);
    this.pages.push(page);
    this.reading.observe(page.node);
    return page;
  }

  /** Make the node of a token or of a lost draft. */
  nodeFor(row) {
    const node = tokenNode(row);
    this.rows.set(node, row);
    if (row.index !== undefined) this.shown.set(row.index, node);
    return node;
  }

  /** The element with the pages of one sequence. */
  home(sequence) {
    const part = this.partOf(sequence);
    return part.tagName === "DETAILS" ? part.lastChild : part;
  }

  /** The element of one sequence: a fold if the run has several. */
  partOf(sequence) {
    const known = this.parts.get(sequence);
    if (known) return known;
    const several = this.run.sequences.length > 1;
    const part = several ? sequenceFold(this.run, sequence, sequence === chosenSequence(this.run)) : el("div", { class: "ss-sequence", "data-sequence": sequence });
    this.text.append(part);
    this.parts.set(sequence, part);
    return part;
  }

  /** Put lost drafts in front of the token at which their branch left the text. */
  haunt(run) {
    const fresh = run.ghosts.slice(this.ghosts || 0);
    if (!fresh.length) return;
    const places = new Map(run.tokens.map((token) => [`${token.sequence}:${token.position}`, token]));
    for (const ghost of fresh) {
      const before = places.get(`${ghost.sequence}:${ghost.before}`);
      const home = this.home(ghost.sequence);
      const page = before ? this.pageOf.get(before.index) : home.lastChild?.page ?? this.newPage(home);
      page.haunt(ghost, before);
    }
    this.ghosts = run.ghosts.length;
  }

  label() {
    const some = this.rows.size > 0;
    const list = (name) => ({ role: "listbox", "aria-label": `Tokens of ${name}; arrow keys move` });
    const folds = this.text.querySelectorAll(":scope > details");
    for (const fold of folds) setProps(fold.lastChild, list(`${runName(this.run)}, sequence ${Number(fold.dataset.sequence) + 1}`));
    if (some && !folds.length) {
      setProps(this.text, list(runName(this.run)));
      this.text.firstChild.setAttribute("role", "presentation");
    }
    if (some && !this.text.querySelector('[tabindex="0"]')) this.text.querySelector(".ss-token")?.setAttribute("tabindex", "0");
  }

  /** Show the text at time t and, unless replay is `over`, the source of the last round's copy. */
  at(t, over) {
    for (const page of this.pages) page.at(t);
    for (const [node, row] of this.rows) node.classList.toggle("ss-future", row.t > t);
    this.now = over ? [] : copiesAt(this.run, t);
    this.time = t;
    if (this.pointed) return;
    this.mark(this.now);
    this.follow();
  }

  /** Show the last tree of the chosen sequence. */
  follow() {
    this.tree.show(treeAt(ofChosen(this.run, this.run.trees), this.time));
  }

  /** Highlight tokens, and the sources of these copies. */
  highlight(rows, copies) {
    this.pointed = true;
    for (const [node, row] of this.rows) node.classList.toggle("ss-lit", rows.has(row));
    this.mark(copies, rows.size === 1 ? [...rows][0] : undefined);
    const trees = [...rows].map((row) => treeOf(this.run, row)).filter(Boolean);
    this.tree.show(ofChosen(this.run, trees)[0] ?? trees[0] ?? this.tree.shown, rows);
  }

  /** Nothing is pointed at: remove the highlights. */
  rest() {
    this.pointed = false;
    for (const node of this.rows.keys()) node.classList.remove("ss-lit");
    this.mark(this.now ?? []);
    this.tree.show(this.tree.shown); // the tree stays, so that the pointer can move from a token into it
  }

  mark(copies, row) {
    if (!copies.length && !this.marked?.length) return;
    this.marked = copies;
    this.sources.mark(copies, row);
    const kinds = new Map();
    for (const copy of copies.filter((c) => c.document < 0)) {
      const { from, start, end, exact } = copiedPlaces(copy, row);
      for (let i = from; i < end; i++) kinds.set(`${copy.sequence}:${i}`, i < start ? "match" : i === exact ? "exact" : "source");
    }
    for (const [node, { sequence, position, index }] of this.rows) {
      const kind = index === undefined ? undefined : kinds.get(`${sequence}:${position}`);
      node.classList.toggle("ss-match", kind === "match");
      node.classList.toggle("ss-source", kind === "source" || kind === "exact");
      node.classList.toggle("ss-exact", kind === "exact");
    }
  }

  /** The node of a token or of a lost draft; its page is opened. */
  nodeOf(row) {
    if (row.index !== undefined) {
      this.pageOf.get(row.index)?.open();
      return this.shown.get(row.index) ?? null;
    }
    for (const page of this.pages) if (page.ghosts.some(([ghost]) => ghost === row)) page.open();
    for (const [node, other] of this.rows) if (other === row) return node;
    return null;
  }

  /** Scroll the text to a token. */
  reveal(row) {
    const part = this.partOf(row.sequence);
    if (part.tagName === "DETAILS") part.open = true;
    const [frame, box] = [this.text, this.nodeOf(row)].map((node) => node?.getBoundingClientRect());
    if (box && (box.top < frame.top || box.bottom > frame.bottom)) this.text.scrollTop += box.top - frame.top - frame.height / 2;
  }

  destroy() {
    this.reading.disconnect();
  }
}

function tokenNode(row) {
  const space = row.text.match(/^\s*/)[0];
  const ink = row.text.slice(space.length);
  const ghost = row.outcome === "rejected" || row.outcome === "discarded";
  const blank = ink ? "" : space.includes("\n") ? " ss-blank ss-newline" : " ss-blank";
  const mark = el(ghost ? "s" : "span", { class: "ss-ink" }, ink);
  return el("span", {
    class: `ss-token ss-${row.outcome}${ghost ? " ss-ghost" : ""}${row.branch ? " ss-branch" : ""}${row.rule === "typical" ? " ss-typical" : ""}${blank}`,
    role: "option",
    tabindex: "-1",
    "aria-label": `${quoted(row.text)}, ${outcomeOf(row)}, step ${row.step}`,
    "data-index": row.index,
  }, ...(ink ? [space, mark] : [mark, space]));
}

/** The speed in a pane's heading: of a batch the throughput and the speed of a sequence; the speed-up if there is a baseline. */
function speedOf(run) {
  const { tokens_per_second: speed, tokens_per_second_per_sequence: each, speedup } = run.figures ?? {}; // a long run has no figures
  if (!speed || speed === "–") return [];
  if (speed === "unknown") return ["speed unknown"];
  const short = run.passes ? number(run.metrics.tokens_per_second, 1) : speed;
  const text = run.batch > 1 ? `throughput ${short} tok/s · ${each} tok/s per sequence` : `${short} tok/s`;
  return [text, ...(run.over && speedup !== "–" ? [" · ", el("b", {}, speedup)] : [])];
}
