// The page's script: theme, keys, viewers, the history's table. No requests to other servers.
"use strict";

window.SpecScopeApp = (() => {
  // -- theme: from the address, else the user's last choice, else the system

  const KEY = "specscope-theme";
  const address = new URL(location.href);
  const remembered = localStorage.getItem(KEY);
  if (!address.searchParams.has("__theme") && remembered) {
    address.searchParams.set("__theme", remembered); // Gradio reads it when it starts
    history.replaceState(history.state, "", address);
  }

  function head(element) {
    element.querySelector(".app-theme").addEventListener("click", () => {
      const theme = document.body.classList.toggle("dark") ? "dark" : "light";
      const here = new URL(location.href);
      here.searchParams.set("__theme", theme);
      history.replaceState(history.state, "", here);
      localStorage.setItem(KEY, theme);
    });
  }

  // -- keys

  const visible = (id) => {
    const button = document.getElementById(id);
    return button && !button.disabled && button.checkVisibility() ? button : null;
  };

  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      const run = visible("run");
      if (run) {
        event.preventDefault();
        // Gradio updates a textbox's value a moment after the typing.
        setTimeout(() => run.click(), 60);
      }
    } else if (event.key === "Escape" && !event.defaultPrevented && !document.querySelector("dialog[open]")) {
      visible("stop")?.click();
    }
  });

  // Gradio gives every radio button a name of its own: one stop of Tab each, and no arrow keys.
  document.addEventListener("focusin", ({ target }) => {
    const group = target.closest?.("fieldset.block");
    if (group && target.type === "radio") for (const one of group.querySelectorAll("input[type=radio]")) one.name = `group-${group.id}`;
  });

  // -- the viewer

  async function ask(address) {
    const answer = await fetch(`/specscope/${address}`);
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.error ?? `the server answered ${answer.status}`);
    return body;
  }

  /** The document of runs; of long runs a part of it unless `whole`. */
  const fetchModel = (runs, whole) => ask(`model?runs=${runs.map(encodeURIComponent).join(",")}&whole=${Boolean(whole)}`);

  /** Show the runs of the component's value, {runs, revision, live}, whenever it changes. */
  function viewer(element, props, watch, trigger, advised) {
    const root = element.querySelector(".app-viewer-root");
    const results = element.closest("#results");
    let view = null;
    let mounted = "";
    let busy = false;
    let again = false;
    let ran = false; // a turn runs
    let listening = false;
    let cursors = new Map(); // by run: how far its deltas have been read
    const ended = new Set(); // runs without further deltas

    const state = (name) => {
      element.dataset.state = name;
      results?.classList.toggle("app-settled", name === "ready");
    };
    const value = () => JSON.parse(props.value || '{"runs":[]}');
    const clear = () => {
      view?.destroy();
      view = null;
      mounted = "";
      root.replaceChildren();
    };

    const advise = (used, { method, config, drafter = "" }) => trigger(advised, { run: used.id, method, config, drafter });

    async function draw(wanted) {
      if (wanted.live && !ran) arrive();
      ran = wanted.live;
      if (!wanted.runs.length) {
        clear();
        state("empty");
        return;
      }
      if (!view) state("loading");
      const read = new Map(cursors);
      const model = await fetchModel(wanted.runs, results || wanted.live);
      cursors = read; // deltas that came since may be missing in the document
      ended.clear();
      root.classList.toggle("app-live", wanted.live);
      if (view && mounted !== wanted.runs[0]) clear();
      if (view) view.update(model);
      else {
        const part = (run) => `run=${encodeURIComponent(run)}`;
        const source = { spans: (run) => ask(`spans?${part(run)}`), rounds: (run, first, last) => ask(`rounds?${part(run)}&first=${first}&last=${last}`), whole: () => fetchModel(value().runs, true) };
        view = SpecScope.mount(root, model, { source, theme: "class", header: !results, advise: results && advise, fragment: wanted.live ? "" : location.hash.slice(1) });
      }
      mounted = wanted.runs[0];
      state(wanted.live ? "live" : "ready");
      element.dataset.revision = String(wanted.revision);
      if (wanted.live && !listening) listen();
    }

    /** While the viewer is live, add what the runs have done since; ask for a document if a device is new. */
    async function listen() {
      listening = true;
      cursors = new Map();
      let due = 0;
      try {
        for (let wanted = value(); wanted.live && wanted.runs.length; wanted = value()) {
          for (const run of wanted.runs.filter((id) => !ended.has(id))) {
            const from = cursors.get(run);
            const answer = await fetch(`/specscope/live?run=${encodeURIComponent(run)}&cursor=${from ?? 0}`);
            if (!answer.ok) return;
            const delta = await answer.json();
            if (!value().live || !view) break;
            if (cursors.get(run) !== from) continue; // a document came meanwhile
            cursors.set(run, delta.cursor);
            if (delta.ended) ended.add(run);
            if (!view.extend(delta) && performance.now() > due) {
              due = performance.now() + 1000;
              cursors.delete(run);
              refresh();
            }
          }
          await new Promise((done) => setTimeout(done, 100));
        }
      } catch {
        // The server is gone; the page shows that elsewhere.
      } finally {
        listening = false;
      }
    }

    async function refresh() {
      if (busy) {
        again = true;
        return;
      }
      busy = true;
      try {
        do {
          again = false;
          await painted();
          await draw(value());
        } while (again);
      } catch (error) {
        clear();
        const message = document.createElement("p");
        message.className = "app-alert";
        message.setAttribute("role", "alert");
        message.textContent = `The trace cannot be shown: ${error.message}`;
        root.append(message);
        state("error");
      } finally {
        busy = false;
      }
    }

    watch("value", refresh);
    refresh();
  }

  const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

  /** The next frame is shown: the status of a turn does not wait for its timeline. A hidden page has no frames. */
  const painted = () => new Promise((done) => {
    requestAnimationFrame(() => setTimeout(done));
    setTimeout(done, 100);
  });

  /** Bring the results into view when a turn begins, unless they are; later the reader may be anywhere. */
  function arrive() {
    if (document.activeElement?.matches("#prompt textarea")) selectAnswered(document.activeElement);
    const line = document.getElementById("turn");
    const top = line?.getBoundingClientRect().top ?? 0;
    if (top < 0 || top > innerHeight / 2) line?.scrollIntoView({ behavior: calm() ? "auto" : "smooth", block: "start" });
  }

  /** Select a prompt that has been answered: typing replaces it, and Run answers it again. */
  function selectAnswered(box) {
    if (box.value && box.value === document.querySelector("#conversation .app-prompt")?.textContent) box.select();
  }

  document.addEventListener("focusin", ({ target }) => {
    if (target.matches?.("#prompt textarea")) setTimeout(() => selectAnswered(target));
  });

  // -- the settings in one line

  /** Fold the settings while the component has a value: the settings of the last turn. */
  function fold(element, watch) {
    let turn = null;
    const refresh = () => {
      const line = element.querySelector(".app-folded"), now = line && (line.dataset.turn ?? "");
      if (now === turn) return; // the same value comes again: settings that were unfolded since stay
      turn = now;
      document.body.classList.toggle("app-ran", line !== null);
    };
    element.addEventListener("click", (event) => {
      if (event.target.closest("button")) document.body.classList.remove("app-ran");
    });
    watch("value", refresh);
    refresh();
  }

  // -- charts

  const self = document.currentScript;
  let loading = null;

  /** Load plotly.js when the first chart is shown. */
  function plotly() {
    loading ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = self.dataset.plotly;
      script.onload = () => resolve(window.Plotly);
      script.onerror = () => reject(new Error("plotly.js cannot be loaded"));
      document.head.append(script);
    });
    return loading;
  }

  /** Draw the figures of a component in the page's colours, and again when its value or the theme changes. */
  function charts(element, watch) {
    const refresh = async () => {
      if (element.querySelector("[data-figure]")) SpecScopeCharts.draw(element, await plotly());
    };
    watch("value", refresh);
    new MutationObserver(refresh).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    refresh();
  }

  // -- times in the reader's time zone

  function times(element, watch) {
    const refresh = () => {
      for (const node of element.querySelectorAll("time[datetime]")) {
        const moment = new Date(node.dateTime);
        if (!Number.isNaN(moment.getTime())) {
          node.title = node.textContent;
          node.textContent = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
        }
      }
    };
    watch("value", refresh);
    refresh();
  }

  /** The heading of open runs: their times, their address, and for a set the button that deletes it. */
  function heading(element, watch, trigger, [removed]) {
    times(element, watch);
    element.addEventListener("click", (event) => {
      const runs = event.target.closest("[data-remove]")?.dataset.remove;
      if (!runs) return;
      SpecScopeAddress.go({ tab: "history" });
      trigger(removed, { runs });
    });
    new MutationObserver(SpecScopeAddress.compared).observe(element, { childList: true, subtree: true });
    SpecScopeAddress.compared();
  }

  // -- the history's table

  /** Send a trace file; return {run} or {error}. */
  async function importFile(file) {
    const button = document.getElementById("history-import");
    button.disabled = true;
    try {
      const answer = await fetch("/specscope/import", { method: "POST", body: file });
      const { run = "", set = "", error = "" } = await answer.json();
      return { run, set, error };
    } catch (error) {
      return { run: "", set: "", error: `the file could not be sent (${error.message}); the limit is 64 MB` };
    } finally {
      button.disabled = false;
    }
  }

  function history_(element, trigger, watch) {
    const boxes = () => [...element.querySelectorAll('input[type="checkbox"]')];
    let pause = 0;
    element.addEventListener("change", () => {
      clearTimeout(pause);
      pause = setTimeout(() => {
        const ids = (some) => some.map((box) => box.value);
        trigger("picked", { listed: ids(boxes()), ticked: ids(boxes().filter((box) => box.checked)) });
      }, 150);
    });
    element.addEventListener("click", (event) => {
      const { open, group, set, offset } = event.target.closest("button")?.dataset ?? {};
      if (open) trigger("opened", { run: open });
      else if (group) trigger("compared", { run: group });
      else if (set) trigger("grouped", { run: set });
      else if (offset) trigger("paged", { offset: Number(offset) });
    });
    const chooser = document.createElement("input");
    chooser.type = "file";
    chooser.accept = ".jsonl,.json,.gz,.log,.txt,.prom,.sse";
    chooser.hidden = true;
    document.body.append(chooser);
    // Gradio may replace the button, so the document listens.
    document.addEventListener("click", async (event) => {
      if (event.target.closest("#history-import")) chooser.click();
      if (!event.target.closest("#history-paste")) return;
      const text = document.querySelector("#history-pasted textarea").value;
      trigger("imported", text.trim() ? await importFile(new Blob([text])) : { run: "", set: "", error: "the text is empty; paste what an engine printed" });
    });
    chooser.addEventListener("change", async () => {
      const [file] = chooser.files;
      chooser.value = "";
      if (file) trigger("imported", await importFile(file));
    });
    times(element, watch);
    // Gradio reuses elements, and a clicked box ignores its `checked` attribute.
    watch("value", () => boxes().forEach((box) => { box.checked = box.hasAttribute("checked"); }));
  }

  // -- files that other processes write

  const PERIOD = 2000; // ms between two looks at the list of files

  /** Keep the list of files up to date while it is shown and not in use; choosing one follows it. */
  function recordings(element, trigger, followed) {
    const select = element.querySelector("select");
    const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text, disabled: !value });
    const age = (seconds) => (seconds < 60 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`);
    select.addEventListener("change", () => {
      trigger(followed, { files: [select.value] });
      select.value = "";
      select.blur();
    });
    async function look() {
      if (!select.isConnected) return;
      if (!document.hidden && select.checkVisibility() && document.activeElement !== select) {
        try {
          const { files } = await ask("recordings");
          const options = files.map(({ name, age: old }) => option(name, `${name} · written ${age(old)} ago`));
          select.options.length = 1;
          select.append(...(options.length ? options : [option("", "None here: specscope follow FILE")]));
        } catch {
          // The server is gone; the page shows that elsewhere.
        }
      }
      setTimeout(look, PERIOD);
    }
    look();
  }

  /** Follow the files that the address names. */
  function wanted(props, watch, trigger, followed) {
    const refresh = () => props.value && trigger(followed, JSON.parse(props.value));
    watch("value", refresh);
    refresh(); // the tab may be mounted after the value came
  }

  /** The lines of followed files: their buttons and their address. The panes show the newest text. */
  function following(element, trigger, watch, [stopped, kept, followed, chosen]) {
    element.addEventListener("click", (event) => {
      const { stop, keep, again, show } = event.target.closest("button")?.dataset ?? {};
      if (stop) trigger(stopped, { file: stop });
      if (keep) trigger(kept, { file: keep });
      if (again) trigger(followed, { files: [again] });
      if (show) trigger(chosen, { file: event.target.closest("[data-file]").dataset.file, run: show });
    });
    watch("value", SpecScopeAddress.compared);
    SpecScopeAddress.compared();
    const panes = document.getElementById("follow-panes");
    new MutationObserver(() => {
      for (const text of panes.querySelectorAll(".ss-text:not(:hover)")) text.scrollTop = text.scrollHeight;
    }).observe(panes, { childList: true, subtree: true });
  }

  return { head, viewer, fold, charts, heading, history: history_, recordings, wanted, following };
})();
