// Copied drafts: their sources, marked in the prompt, in reference or finished texts and in the output.

/** The name of a copy's source. */
function sourceName(run, copy) {
  if (copy.document >= 0) {
    const documents = run.sources.filter((source) => source.document >= 0).length;
    if (run.forecasts.length) return `finished text ${copy.document + 1}`;
    return documents > 1 ? `reference ${copy.document + 1}` : "the reference text";
  }
  const first = run.tokens.find((token) => token.sequence === copy.sequence);
  return first && copy.start >= first.position ? "the output" : "the prompt";
}

/** A sentence about a copy, and the text of its source. */
function copyNote(run, copy, row) {
  const { from, start, end, exact } = copiedPlaces(copy, row);
  const text = (low, high) => sourceTexts(run, copy, low, high).replace(/\s+/g, " ");
  const marked = exact < 0 ? [text(start, end)] : [text(start, exact), el("b", {}, text(exact, exact + 1)), text(exact + 1, end)];
  const known = text(from, end).trim() !== "";
  return el("div", { class: "ss-from" },
    el("p", {}, `Copied from ${sourceName(run, copy)}, from token ${start + 1} on, after ${some(copy.match, "matching token")}.`),
    known ? el("p", { class: "ss-quote" }, "… ", el("span", { class: "ss-match" }, text(from, start)), el("span", { class: "ss-source" }, marked), " …") : null);
}

/** The prompts and reference texts of a pane. Each scrolls separately, to bring its mark into view. */
class Sources {
  constructor() {
    this.root = el("div", { class: "ss-sources", hidden: true });
    this.blocks = [];
  }

  update(run) {
    const shown = run.sources.filter((source) => source.document >= 0 || ofChosen(run, [source]).length);
    const drawn = JSON.stringify(shown);
    this.run = run;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.blocks = shown.map((source) => this.block(source));
    this.root.replaceChildren(...this.blocks.map(({ node }) => node));
    this.root.hidden = !this.blocks.length;
  }

  block(source) {
    const several = this.run.sequences.length > 1;
    const documents = this.run.sources.filter(({ document }) => document >= 0).length;
    const name = source.document < 0 ? (several ? `Prompt ${source.sequence + 1}` : "Prompt")
      : this.run.forecasts.length ? `Finished text ${source.document + 1}` : documents > 1 ? `Reference ${source.document + 1}` : "Reference";
    const status = el("span", { class: "ss-hint" });
    const text = el("div", { class: "ss-source-text", tabindex: "0", role: "group", "aria-label": name }, source.texts.join(""));
    return { source, status, text, node: el("section", {}, el("header", {}, el("h4", {}, name), status), text) };
  }

  /** Mark the sources of these copies and, if a drafted token is pointed at, the token it was copied from. */
  mark(copies, row) {
    for (const { source, status, text } of this.blocks) {
      const copy = copies.find((c) => sourceOf(this.run, c) === source);
      const places = copy && copiedPlaces(copy, row);
      const inSource = places && places.from < source.texts.length;
      status.textContent = inSource ? this.statusOf(copy) : "";
      text.replaceChildren(...(inSource ? marked(source.texts, places) : [source.texts.join("")]));
      const mark = text.querySelector("mark");
      if (mark) text.scrollTop += mark.getBoundingClientRect().top - text.getBoundingClientRect().top - text.clientHeight / 3;
    }
  }

  statusOf(copy) {
    const round = this.run.rounds.find((r) => r.step === copy.step && r.sequence === copy.sequence);
    const accepted = round ? `, ${round.accepted} accepted` : "";
    return `step ${copy.step}: ${copy.match} match, ${copy.length} copied${accepted}`;
  }
}

/** A text as nodes, with elements for its marked parts. */
function marked(texts, { from, start, end, exact }) {
  const part = (low, high) => texts.slice(Math.max(low, 0), Math.max(high, 0)).join("");
  const mark = (kind, low, high) => (low < Math.min(high, texts.length) ? el("mark", { class: kind }, part(low, high)) : "");
  const whole = mark("ss-source", start, end);
  if (whole && exact >= 0 && exact < texts.length) {
    const [space, ink] = [texts[exact].match(/^\s*/)[0], texts[exact].trimStart()];
    whole.replaceChildren(part(start, exact) + space, el("b", { class: "ss-exact" }, ink), part(exact + 1, end));
  }
  return [part(0, from), mark("ss-match", from, start), whole, part(end, texts.length)].filter((p) => p !== "");
}
