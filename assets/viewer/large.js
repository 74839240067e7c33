// A dialog that shows a tree or a window of n-grams in nearly the whole page. The view itself moves there, so it stays live.

const ICON_LARGE = "M2 2h5v1.6H4.7l2.6 2.6-1.1 1.1-2.6-2.6V7H2zM14 14H9v-1.6h2.3L8.7 9.8l1.1-1.1 2.6 2.6V9H14z";

class Large {
  constructor(viewer) {
    this.viewer = viewer;
    this.holder = null;
    this.title = el("h3", {});
    this.body = el("div", { class: "ss-large-body" });
    const close = el("button", { type: "button", class: "ss-button ss-wide-button", onclick: () => this.dialog.close() }, "Close");
    this.dialog = el("dialog", { class: "ss-large" }, el("header", { class: "ss-large-head" }, this.title, close), this.body);
    this.dialog.addEventListener("close", () => this.bring());
    this.dialog.addEventListener("click", (event) => { if (event.target === this.dialog) this.dialog.close(); });
    this.dialog.addEventListener("keydown", (event) => { if (event.key === "Escape" && viewer.pinned) event.preventDefault(); }); // the card first
  }

  /** A button that opens the only child of `holder`; `nameOf()` is the title. */
  button(nameOf, holder) {
    return el("button", { type: "button", class: "ss-button ss-open-large", "aria-label": "Open large", title: "Open large",
      onclick: () => this.open(nameOf(), holder) }, icon(ICON_LARGE));
  }

  open(name, holder) {
    this.holder = holder;
    this.title.textContent = name;
    this.dialog.setAttribute("aria-label", name);
    holder.style.minHeight = `${holder.offsetHeight}px`;
    this.body.className = `ss-large-body ${holder.firstElementChild.dataset.look ?? ""}`;
    this.body.append(holder.firstElementChild);
    this.viewer.release();
    this.dialog.append(this.viewer.card.node);
    this.dialog.showModal();
  }

  /** Bring the view and the card back. */
  bring() {
    if (!this.holder) return;
    this.viewer.release();
    this.holder.append(...this.body.children);
    this.body.className = "ss-large-body";
    this.holder.style.minHeight = "";
    this.holder = null;
    this.viewer.root.append(this.viewer.card.node);
  }
}
