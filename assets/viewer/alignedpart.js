// Token by token of long runs: the server is asked for the tokens that the first run commits in the timeline's window,
// and for the same tokens of the other runs (app/jobs/windows.py).

class AlignedPart {
  constructor(viewer, show) {
    Object.assign(this, { viewer, show, active: false, names: "", asked: "", asking: false, found: null, problem: "" });
    this.look = throttled(() => this.next(), 400);
  }

  /** Take another document; return whether its runs are loaded in part and can be aligned. */
  update(model) {
    const { source } = this.viewer.options;
    const names = model.runs.map((run) => run.id).join();
    if (names !== this.names) Object.assign(this, { names, asked: "", found: null, problem: "" });
    this.model = model;
    this.active = model.runs.length > 1 && Boolean(model.runs[0].long && source?.aligned);
    if (this.active) this.look();
    return this.active;
  }

  /** Ask for the window of the timeline, unless it is the last one asked for. */
  async next() {
    const { range } = this.viewer.gantt;
    if (!this.active || this.asking || !range) return;
    const run = this.model.runs[0];
    const [low, high] = [Math.max(run.from, range[0]), Math.min(run.to, range[1])];
    const query = new URLSearchParams({ runs: this.names, low, high, sequence: chosenSequence(run) }).toString();
    if (low >= high || query === this.asked) return;
    Object.assign(this, { asked: query, asking: true, problem: "" });
    const { names } = this;
    let found = null;
    try {
      found = await this.viewer.options.source.aligned(query);
    } catch (error) {
      this.problem = `The tokens of the window cannot be loaded: ${error.message}.`;
    }
    this.asking = false;
    if (!this.active) return;
    if (names === this.names) {
      this.found = found;
      this.show();
    }
    this.look(); // the window may have moved meanwhile
  }

  /** The rows that `Aligned` draws. */
  rows() {
    const rows = (this.found?.rows ?? []).flatMap(({ reason, tokens, before, length }, i) => {
      if (reason || !tokens.length) return [];
      const t = Float64Array.from(tokens, (token) => token.t);
      const gap = t.map((time, k) => time - (k ? t[k - 1] : before));
      return [{ run: this.model.runs[i], tokens: tokens.map((token, k) => ({ ...token, gap: gap[k] })), t, gap, length, first: this.found.first }];
    });
    return this.found?.rows[0].tokens.length ? rows : [];
  }

  /** Which tokens are shown, and why others are not. */
  note() {
    if (this.problem) return this.problem;
    if (!this.found) return "The tokens of the timeline's window are loading.";
    const { first, inside, rows } = this.found;
    const { runs } = this.model;
    const [{ tokens, length, reason }] = rows;
    if (reason) return `${runName(runs[0])} cannot be aligned: ${reason}.`;
    if (!inside) return `${runName(runs[0])} commits no token in the timeline's window; move the window.`;
    const last = first + tokens.length;
    const cut = tokens.length < inside ? ` The window has ${number(inside, 0)} of them; zoom in to see the others.` : "";
    return [
      `Tokens ${number(first + 1, 0)} to ${number(last, 0)} of ${number(length, 0)}: those that ${runName(runs[0])} commits in the timeline's window.${cut}`,
      ...rows.slice(1).flatMap((row, i) => partReason(runName(runs[i + 1]), row, last)),
    ].join(" ");
  }

  /** The token of a cell, with its decision where the loaded part has it. */
  whole({ run, tokens }, k) {
    if (!run.long) return tokens[k];
    return run.tokens.find((token) => token.index === tokens[k].index) ?? { ...tokens[k], p: null, q: null, u: null, outside: true };
  }

  destroy() {
    this.active = false;
    this.look.cancel();
  }
}

/** Why a run has fewer tokens than the first one, as a list of at most one sentence. */
function partReason(name, { reason, same, length }, last) {
  if (reason) return [`Not aligned: ${name}, ${reason}.`];
  if (same >= last) return [];
  return [`${name} ${same < length ? "writes another text" : "ends"} after token ${number(same, 0)}.`];
}
