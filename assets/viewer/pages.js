// The text of a long run in pages. A page that nobody has looked at is plain text, which costs little.

const PAGE = 500; // tokens of a sequence on a page
const EAGER = 2000; // tokens of a run whose pages are all opened at once

/** Some tokens of a sequence with the lost drafts between them; `pane` keeps the rows of its nodes. */
class Page {
  constructor(pane) {
    this.pane = pane;
    this.tokens = [];
    this.places = new Map(); // of a token in `tokens`, by its index
    this.ghosts = [];
    this.opened = false;
    this.node = el("span", { class: "ss-page", role: "presentation" });
    this.node.page = this;
  }

  add(token) {
    this.places.set(token.index, this.tokens.push(token) - 1);
    if (this.opened) this.node.append(this.pane.nodeFor(token));
  }

  /** Write the plain text of a page that is not opened. */
  write() {
    if (!this.opened) this.node.textContent = this.tokens.map((token) => token.text).join("");
  }

  /** Take the row of a newer document for a token. */
  renew(token) {
    this.tokens[this.places.get(token.index)] = token;
    const node = this.pane.shown.get(token.index);
    if (node) this.pane.rows.set(node, token);
  }

  /** Put a lost draft in front of a token of this page, or at its end. */
  haunt(ghost, before) {
    this.ghosts.push([ghost, before]);
    if (this.opened) this.place(ghost, before);
  }

  place(ghost, before) {
    const node = this.pane.nodeFor(ghost);
    const at = before && this.pane.shown.get(before.index);
    if (at) at.before(node);
    else this.node.append(node);
  }

  /** Show tokens in place of the plain text. */
  open() {
    if (this.opened) return;
    this.opened = true;
    this.node.replaceChildren(...this.tokens.map((token) => this.pane.nodeFor(token)));
    for (const [ghost, before] of this.ghosts) this.place(ghost, before);
  }

  /** Hide the tokens after time t; a page that t divides is opened. */
  at(t) {
    const [first, last] = [this.tokens[0]?.t ?? -Infinity, this.tokens.at(-1)?.t ?? -Infinity];
    if (first <= t && last > t) this.open();
    this.node.classList.toggle("ss-future", !this.opened && first > t);
  }
}
