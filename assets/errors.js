// An error leads to its control: the alert (`alert` in app/render/html.py) stands where one pressed the button, and names it.
"use strict";

window.SpecScopeErrors = (() => {
  const FIELDS = "textarea, input:not([type=range], [type=hidden]), select, button";
  let clear = () => {}; // takes the marks of the last error away

  const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const inView = (node) => {
    const { top, bottom } = node.getBoundingClientRect();
    return top >= 0 && bottom <= innerHeight;
  };

  /** The control with an id, unfolded; null if no control of the shown tab has it. */
  async function unfolded(id) {
    SpecScopePicker.reveal(id);
    const found = () => {
      const box = document.getElementById(id);
      return box?.checkVisibility() ? box : null;
    };
    if (id !== "prompt") document.body.classList.remove("app-ran"); // the settings are folded after a run
    for (const fold of document.querySelectorAll(".app-fold > button.label-wrap:not(.open)")) {
      if (found()) break; // Gradio leaves out what a fold contains until it is opened
      fold.click();
      await drawn();
      if (!found()) fold.click();
    }
    return found();
  }

  /** Lead to the control of an alert: focus, marks, and the message beside it if the alert is out of sight. */
  async function lead(alert) {
    clear();
    const box = alert.dataset.at ? await unfolded(alert.dataset.at) : null;
    if (!box) {
      alert.scrollIntoView({ block: "nearest" });
      return;
    }
    const field = box.matches(FIELDS) ? box : box.querySelector("input:checked") ?? box.querySelector(FIELDS);
    const note = Object.assign(document.createElement("p"), { id: "error-note", className: "app-alert app-at-field", textContent: alert.dataset.message });
    field.setAttribute("aria-invalid", "true");
    field.focus({ preventScroll: true });
    if (!inView(field)) field.scrollIntoView({ block: "center" });
    if (!inView(alert)) {
      (box === field ? field.parentElement : box).append(note);
      field.setAttribute("aria-describedby", note.id);
    }
    clear = () => {
      note.remove();
      field.removeAttribute("aria-invalid");
      if (field.getAttribute("aria-describedby") === note.id) field.removeAttribute("aria-describedby");
      clear = () => {};
    };
    for (const event of ["input", "change"]) box.addEventListener(event, () => clear(), { once: true });
    point(alert, field);
  }

  /** Add a button to an alert that leads to its control, by the control's label. */
  function point(alert, field) {
    const label = field.labels?.[0]?.querySelector("[data-testid=block-info]") ?? field.labels?.[0] ?? field.closest("fieldset")?.querySelector("span");
    const name = (field.closest("[data-label]")?.dataset.label ?? label?.textContent ?? field.getAttribute("aria-label") ?? "").trim();
    if (!name) return;
    const button = Object.assign(document.createElement("button"), { type: "button", className: "app-link", textContent: name });
    button.addEventListener("click", () => lead(alert));
    alert.replaceChildren(button, ": ", alert.dataset.message);
  }

  /** Lead to the control of every alert that a component shows. */
  function watch_(element, watch) {
    watch("value", () => {
      clear();
      const alert = element.querySelector(".app-alert");
      if (!alert) return;
      alert.dataset.message = alert.textContent;
      lead(alert);
    });
  }

  return { watch: watch_ };
})();
