// Search in the runs: by the text of a token, a kind of span, an outcome, or a step.

/** What a query finds, by time: [{run, item: {span} or {token}, t}]. */
function found(model, query) {
  const wanted = query.trim().toLowerCase();
  if (!wanted) return [];
  const step = /^step\s*(\d+)$/.exec(wanted)?.[1];
  return model.runs.flatMap((run) => {
    const spans = run.tracks.flatMap(({ spans: s }) => s.id.map((id, i) => ({ id, i, s }))
      .filter(({ i }) => (step ? s.step[i] === Number(step) : s.kind[i] === wanted)));
    if (step || spans.length) return spans.map(({ id, i, s }) => ({ run, item: { span: id }, t: s.start[i] }));
    const rows = [...run.tokens, ...run.ghosts];
    const named = rows.filter((row) => row.outcome === wanted);
    return (named.length ? named : rows.filter((row) => row.text.toLowerCase().includes(query.toLowerCase())))
      .map((token) => ({ run, item: { token }, t: token.t }));
  }).sort((a, b) => a.t - b.t);
}

class Search {
  constructor(viewer) {
    this.viewer = viewer;
    this.at = -1;
    this.hits = [];
    this.input = el("input", { type: "search", class: "ss-search-box", "aria-label": "Search", placeholder: "token, verify, step 4",
      title: "Text of a token, a kind of span, an outcome, or a step ( / )", oninput: () => this.look(), onkeydown: (event) => this.key(event) });
    this.count = el("output", { class: "ss-note" });
    const button = (name, label, way) => el("button", { type: "button", class: "ss-button", "aria-label": label, title: label, onclick: () => this.step(way) }, name);
    this.buttons = el("span", { class: "ss-search-steps", hidden: true }, button("‹", "Previous match", -1), button("›", "Next match", 1));
    this.node = el("div", { class: "ss-search", role: "search" }, this.input, this.count, this.buttons);
  }

  look() {
    this.hits = found(this.viewer.model, this.input.value);
    this.at = -1;
    this.say();
    if (this.stepped && !this.hits.length) this.leave();
  }

  /** Close the card of the last match. */
  leave() {
    this.stepped = false;
    this.viewer.release();
  }

  say() {
    const n = this.hits.length;
    this.buttons.hidden = n === 0;
    this.count.textContent = !this.input.value.trim() ? "" : n === 0 ? "nothing found" : this.at < 0 ? `${number(n, 0)} found` : `${number(this.at + 1, 0)} of ${number(n, 0)}`;
  }

  key(event) {
    if (event.key === "Enter" && !event.isComposing) this.step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") {
      this.input.value = "";
      this.look();
      this.viewer.release();
      this.viewer.gantt.box.focus({ preventScroll: true });
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  step(way) {
    if (!this.hits.length) return;
    this.at = this.at < 0 && way < 0 ? this.hits.length - 1 : (this.at + way + this.hits.length) % this.hits.length;
    const { run, item } = this.hits[this.at];
    this.stepped = true;
    if (this.viewer.model.runs.includes(run)) this.viewer.pick(run, item);
    this.say();
  }
}
