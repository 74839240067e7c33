// The finished race on the first page: texts, and a line per method of who works. The whole timeline opens on request.
"use strict";

window.SpecScopeDemo = (() => {
  const HIDDEN = "specscope-demo"; // in the browser's storage after the user hid the race
  const BANDS = [["both", "both work"], ["draft", "only the drafter works"], ["target", "only the target works"], ["none", "nobody works"]];
  const INKS = [["accepted", "accepted draft"], ["bonus", "the target's own token"]];

  /** A line per run: who works at each time from 0 to `end` ms. */
  function lines(runs, end) {
    const { el, drawn } = SpecScope;
    const bar = ([kind, from, to]) => drawn("rect", { x: Math.max(0, from), width: Math.max(0, Math.min(end, to) - Math.max(0, from)), height: 1, class: `app-band-${kind}` });
    return el("div", { class: "app-demo-lines", "aria-hidden": "true" }, runs.flatMap((run) => [ // the panes say it in words
      el("span", { class: "app-demo-name" }, run.title),
      el("div", { class: "app-demo-line" }, drawn("svg", { viewBox: `0 0 ${end} 1`, preserveAspectRatio: "none" }, run.band.map(bar)), el("i", { class: "app-demo-veil" }))]));
  }

  function legend(runs) {
    const { el, legendOf } = SpecScope;
    const used = new Set(runs.flatMap((run) => run.band.map(([kind]) => kind)));
    const bands = BANDS.filter(([kind]) => used.has(kind)).map(([kind, label]) => [`ss-k-band-${kind}`, label]);
    return legendOf("Legend", [...bands, ...INKS.map(([kind, label]) => el("li", {}, el("span", { class: `ss-ink ss-${kind}` }, label)))], "ss-legend app-demo-legend");
  }

  /** Keep the newest token of every text in sight, and cover what is later than the replay's time. */
  function follow(root, box, end) {
    const now = Number(root.dataset.time ?? end);
    const done = Math.max(0, Math.min(1, now / end));
    for (const veil of box.querySelectorAll(".app-demo-veil")) veil.style.left = `${100 * done}%`;
    for (const text of root.querySelectorAll(".ss-text")) {
      const newest = [...text.querySelectorAll(".ss-token:not(.ss-future, .ss-ghost) .ss-ink")].at(-1);
      const line = parseFloat(getComputedStyle(text).lineHeight);
      const below = newest ? newest.getBoundingClientRect().bottom - text.getBoundingClientRect().top + text.scrollTop - text.clientHeight : 0;
      text.scrollTop = line * Math.ceil(below / line - 0.2); // whole lines
    }
  }

  /** Show the race, unless the user hid it or `later` says that this visit has something else to see. */
  function mount(element, later) {
    const root = element.querySelector(".app-demo-root");
    const hide = element.querySelector(".app-demo-hide");
    const more = element.querySelector(".app-demo-more");
    const card = element.querySelector(".app-demo");
    let view = null;
    const close = () => {
      view?.destroy();
      view = null;
      root.replaceChildren();
    };
    async function open() {
      const answer = await fetch("/specscope/demo");
      const { prompt, where, looks, model } = await answer.json();
      element.querySelector(".app-demo-prompt").textContent = prompt;
      view = SpecScope.mount(root, model, { theme: "class", header: false });
      root.querySelectorAll(".ss-pane").forEach((pane, i) => pane.querySelector(".ss-pane-head").after(SpecScope.el("p", { class: "app-look" }, looks[i])));
      root.querySelector(".ss-race").after(SpecScope.el("p", { class: "app-demo-where" }, where));
      const box = lines(model.runs, model.axis.max);
      root.querySelector(".ss-panes").after(box, legend(model.runs));
      new MutationObserver(() => follow(root, box, model.axis.max)).observe(root, { attributes: true, attributeFilter: ["data-time"] });
      follow(root, box, model.axis.max);
      element.dataset.state = "ready";
      view.race();
    }
    const whole = (on) => {
      card.classList.toggle("app-demo-whole", on);
      more.textContent = on ? "Less" : "The whole timeline";
    };
    const show = (on) => {
      element.dataset.state = on ? "loading" : "hidden";
      element.classList.toggle("app-demo-closed", !on);
      hide.textContent = on ? "Hide" : "Watch a finished race";
      whole(false);
      if (on) open().catch((error) => { element.dataset.state = "error"; root.textContent = `The race cannot be shown: ${error.message}`; });
      else close();
    };
    more.addEventListener("click", () => whole(!card.classList.contains("app-demo-whole")));
    hide.addEventListener("click", () => {
      const on = !view;
      if (on) localStorage.removeItem(HIDDEN);
      else localStorage.setItem(HIDDEN, "hidden");
      show(on);
    });
    new MutationObserver(() => {
      if (view && document.body.classList.contains("app-ran")) show(false);
    }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    show(!later && !localStorage.getItem(HIDDEN));
  }

  return { mount };
})();
