// The viewer: it puts the parts together. The page uses `SpecScope` only.

const VERSION = 1; // of the document

class Viewer {
  constructor(root, model, options) {
    this.root = root;
    this.options = options;
    this.pinned = null;
    this.panes = [];
    this.followed = new Map();
    this.origins = new Map(); // ms from a run's start to the start of decoding, by run id
    root.classList.add("specscope");
    if (options.theme === "class") root.dataset.theme = "class";
    this.build();
    this.keys = keyListener(this);
    root.addEventListener("keydown", this.keys);
    this.watchTheme();
    this.update(model);
    if (options.fragment && this.model) follow(this, options.fragment);
    this.leave = options.source ? followHash(this) : () => {};
  }

  build() {
    this.tracks = new TrackChoice(() => this.gantt.update(this.model));
    this.gantt = new Gantt(this.root, this);
    this.replay = new Replay((t) => this.seek(t), (t) => this.arrive(t), (direction) => this.startOf(direction));
    this.search = new Search(this);
    this.long = new LongRuns(this, this.options.source);
    this.panel = new RangePanel(this);
    this.large = new Large(this);
    this.head = el("header", { class: "ss-head" });
    this.race = el("p", { class: "ss-race" });
    this.grid = el("div", { class: "ss-panes" });
    this.legend = el("div");
    this.rejected = el("input", { type: "checkbox", onchange: () => this.showRejected(this.rejected.checked) });
    const check = el("label", { class: "ss-check" }, this.rejected, "rejected drafts");
    const helpButton = el("button", { type: "button", class: "ss-button", "aria-label": "Keys", title: "Keys ( ? )", onclick: () => this.help(true) }, "?");
    this.fit = el("button", { type: "button", class: "ss-button ss-wide-button", title: "Fit ( f )", onclick: () => this.gantt.fit() }, "fit");
    this.link = el("button", { type: "button", class: "ss-button ss-wide-button", title: "Copy the address of this view", onclick: () => this.copyLink() }, "link");
    this.bar = el("div", { class: "ss-bar" }, check, this.replay.node, this.search.node, this.tracks.node, this.fit, this.link, helpButton);
    this.insets = INSETS.map((make) => make(this));
    this.below = el("div", { class: "ss-insets" }, this.insets.map((inset) => inset.node));
    this.tables = el("div", { class: "ss-tables" });
    this.empty = el("p", { class: "ss-empty", hidden: true }, "Nothing to show yet: run a prompt, and its timeline appears here.");
    this.live = el("div", { class: "ss-sr", role: "status" });
    this.dialog = helpDialog();
    this.root.replaceChildren(this.head, this.race, this.empty, this.grid, this.bar, this.long.node, this.legend, this.gantt.node, this.panel.node, this.below, this.tables, this.dialog, this.large.dialog, this.live);
    this.card = new Card(this.root);
  }

  /** Show another state of the document; runs that are shown already grow in place. */
  update(model) {
    if (model.model !== VERSION) {
      this.fail(`This run's document has version ${model.model}, but the viewer reads version ${VERSION}; reload the page.`);
      return;
    }
    const shown = this.shown;
    this.model = unpack(model);
    for (const run of model.runs) run.chosen = this.followed.get(run.id);
    this.release();
    this.header(model);
    this.race.textContent = model.race ?? "";
    while (this.panes.length > model.runs.length) this.dropPane();
    model.runs.forEach((run, i) => {
      if (!this.panes[i]) {
        this.panes[i] = new Pane(this);
        this.grid.append(this.panes[i].root);
      }
      this.panes[i].update(run, model.clocks.length);
    });
    this.fit.hidden = !model.runs.some((run) => run.timed);
    this.bar.hidden = !model.runs.length;
    this.tables.hidden = !model.runs.length || model.runs.some((run) => run.long);
    this.legend.replaceChildren(...(model.runs.length ? [legend(model)] : []));
    this.tracks.update(model);
    this.gantt.update(model);
    this.long.update(model);
    callInsets(this.insets, "update", model);
    this.replay.update(model);
    if (!this.tables.hidden) this.refreshTables(model);
    this.search.look();
    this.link.hidden = model.state !== "ready" || this.fit.hidden || location.protocol === "about:"; // a frame has no address
    if (this.panel.range) this.panel.set(this.panel.range);
    this.empty.hidden = model.runs.length > 0;
    this.root.dataset.state = model.state;
    if (shown) this.showAgain(shown);
    if (this.later && !model.runs.some((run) => run.long)) follow(this, this.later);
  }

  /** Add a delta to a live document; return whether the document has all devices of the delta. */
  extend(delta) {
    const run = this.model.runs.find((other) => other.id === delta.run);
    if (!run || this.model.state !== "live") return true;
    const complete = grow(run, delta, this.origins);
    this.model.axis.max = Math.max(this.model.axis.max, run.to);
    this.gantt.grow();
    return complete;
  }

  dropPane() {
    const pane = this.panes.pop();
    pane.destroy();
    pane.root.remove();
  }

  /** After an update, show the card that was open. */
  showAgain({ run, item, box, pinned }) {
    const next = this.model.runs.find((other) => other.id === run.id);
    if (!next) return;
    if (item.span !== undefined && findSpan(next, item.span)) this.show(next, { span: item.span }, box, pinned);
    const row = item.token && [...next.tokens, ...next.ghosts].find((r) =>
      r.position === item.token.position && r.step === item.token.step && r.outcome === item.token.outcome && r.id === item.token.id);
    if (row) this.show(next, { token: row }, this.boxOfToken(next, row), pinned);
  }

  header(model) {
    const run = model.runs[0];
    const prompt = run ? (run.redacted ? "(prompt left out)" : run.prompts[0] || (run.imported ? "(prompt unknown)" : "")) : "";
    this.head.hidden = this.options.header === false || !run;
    this.head.replaceChildren(
      el("span", { class: "ss-prompt", title: prompt ?? "" }, prompt ?? ""),
      ...model.clocks.map((clock) => el("span", { class: "ss-badge ss-clock-badge" }, clock)),
      model.clocks.length > 1 ? el("span", { class: "ss-badge ss-warn" }, "different clocks: do not compare speeds") : "");
  }

  refreshTables(model) {
    const open = [...this.tables.querySelectorAll(":scope > .ss-card > details")].map((fold) => fold.open);
    const card = el("section", { class: "ss-card", "aria-label": "Figures" },
      el("div", { class: "ss-gantt-title" }, el("h3", {}, "Figures"), model.clocks.map((clock) => el("span", { class: "ss-badge" }, clock))),
      figureTables(model), timelineTable(model));
    this.tables.replaceChildren(card);
    card.querySelectorAll(":scope > details").forEach((fold, i) => { fold.open = Boolean(open[i]); });
  }

  fail(message) {
    this.root.dataset.state = "error";
    this.root.replaceChildren(el("p", { class: "ss-empty ss-bad", role: "alert" }, message));
  }

  seek(t) {
    const over = this.model.state === "ready" && t >= this.model.axis.max;
    for (const pane of this.panes) pane.at(this.model.state === "live" ? Infinity : t, over);
    this.gantt.at(this.model.state === "live" ? Infinity : t);
    callInsets(this.insets, "at", this.model.state === "live" ? Infinity : t);
    this.root.dataset.time = String(t);
  }

  /** Show the tokens of this sequence in the timeline, and open its text. */
  follow(run, sequence) {
    this.followed.set(run.id, sequence);
    run.chosen = sequence;
    const pane = this.panes[this.model.runs.indexOf(run)];
    pane.partOf(sequence).open = true;
    pane.sources.update(run);
    pane.follow();
    this.gantt.update(this.model);
    callInsets(this.insets, "followed", this.model);
  }

  showRejected(on) {
    this.rejected.checked = on;
    this.root.classList.toggle("ss-show-rejected", on);
  }

  /** Mark a range of time and show its figures; null: of none. */
  select(range) {
    this.gantt.select(range);
    this.panel.set(range);
  }

  copyLink() {
    this.live.textContent = `The address of this view is copied: ${linkTo(this)}`;
    this.link.textContent = "copied";
    setTimeout(() => { this.link.textContent = "link"; }, 1500);
  }

  /** The timeline's window has changed. */
  ranged() {
    this.long.look();
    callInsets(this.insets, "range");
  }

  // -- pointing -------------------------------------------------------------------------------------------------

  /** Show the card of a hovered or focused hit, beside a box; hit null: of nothing. A hit has a run, and a token or what `Gantt.hit` finds. */
  hover(hit, box) {
    if (this.pinned) return;
    if (hit) this.show(hit.run, hit, box, false);
    else this.clear();
  }

  /** Pin the card of a hit; once more: let it go. */
  pin(hit, box) {
    const { item } = this.pinned ?? {};
    const again = hit && item && (hit.token ?? hit.span) !== undefined && item.run.id === hit.run.id && item.token === hit.token && item.span === hit.span;
    this.release();
    if (hit && !again) this.show(hit.run, hit, box, true);
  }

  boxOfToken(run, row) {
    const pane = this.panes[this.model.runs.indexOf(run)];
    return pane?.nodeOf(row)?.getBoundingClientRect() ?? this.root.getBoundingClientRect();
  }

  show(run, item, box, pinned) {
    this.shown = { run, item, box, pinned };
    if (pinned) this.pinned = this.shown;
    const { rows, spans, copies } = item.token || item.span !== undefined ? linked(run, item) : { rows: new Set(), spans: new Set(), copies: [] };
    for (const pane of this.panes) {
      if (pane.run === run) pane.highlight(rows, copies);
      else pane.rest();
    }
    this.gantt.highlight([...spans].map((span) => ({ run, span, strong: span === item.span })), run, flowsOf(rows));
    callInsets(this.insets, "highlight", run, spans, item.span);
    this.card.show(this.content(run, item), box, pinned);
    if (item.token) this.describe(run, item.token);
  }

  content(run, item) {
    if (item.token) return tokenCard(item.part ?? run, item.token);
    if (item.span !== undefined) return spanCard(run, findSpan(run, item.span));
    if (item.wait) return waitCard(item.row.track, item.wait);
    return bandCard(item.band);
  }

  /** Tie the card to its token for screen readers. */
  describe(run, row) {
    const node = this.panes[this.model.runs.indexOf(run)]?.nodeOf(row);
    node?.setAttribute("aria-describedby", this.card.node.id);
  }

  clear() {
    this.shown = null;
    this.card.hide();
    this.gantt.highlight([]);
    callInsets(this.insets, "highlight", null, new Set());
    for (const pane of this.panes) pane.rest();
  }

  release() {
    this.pinned = null;
    this.clear();
  }

  help(on) {
    if (on) this.dialog.showModal();
    else this.dialog.close();
  }

  /** Resolve the colours again when the theme changes: a canvas does not read CSS variables. */
  watchTheme() {
    this.media = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => this.gantt.recolour();
    this.media.addEventListener("change", this.recolour);
    this.classes = new MutationObserver(this.recolour);
    for (const node of [document.documentElement, document.body]) this.classes.observe(node, { attributes: true, attributeFilter: ["class"] });
  }

  destroy() {
    this.replay.play(false);
    this.media.removeEventListener("change", this.recolour);
    this.classes.disconnect();
    this.gantt.destroy();
    this.long.destroy();
    while (this.panes.length) this.dropPane();
    callInsets(this.insets, "destroy");
    this.root.removeEventListener("keydown", this.keys);
    this.leave();
    this.root.replaceChildren();
    this.root.classList.remove("specscope", "ss-show-rejected");
  }
}

/**
 * Show a document in an element.
 *
 * options: `theme` ("auto" follows the system and a .dark ancestor, "class" the ancestor only), `header` (false leaves
 * out prompt and clock), `fragment` (a view to begin with, see link.js).
 */
function mount(root, model, options = {}) {
  const viewer = new Viewer(root, model, options);
  return {
    update: (next) => viewer.update(next),
    extend: (delta) => viewer.extend(delta),
    seek: (t) => viewer.replay.to(t),
    race: () => viewer.replay.race(),
    destroy: () => viewer.destroy(),
  };
}

window.SpecScope = { mount, unpack, grow, lineOf, sharesOf, el, drawn, legendOf };
