// The address is what one sees: ?race=…, ?run=…,…, ?follow=…,… or ?tab=…; Back and Forward lead to the earlier ones.
"use strict";

window.SpecScopeAddress = (() => {
  const CHATS = "specscope-chats"; // in the tab's storage: {last, races: {id: conversation}}
  const MOST = 12;
  const PARTS = ["race", "run", "follow", "tab"];
  const TABS = { Playground: "", History: "history", Lab: "lab", Load: "load", Advise: "advise", Papers: "papers", About: "about" };

  function here() {
    const values = new URL(location.href).searchParams;
    return Object.fromEntries(PARTS.map((name) => [name, values.get(name) ?? ""]));
  }
  const keyOf = (place) => PARTS.map((name) => place[name] ?? "").join("|");
  let now = keyOf(here());

  /** Give the page the address of a place, {race}, {run}, {follow} or {tab}; nothing if it has it. */
  function go(place) {
    if (keyOf(place) === keyOf(here())) return;
    const url = new URL(location.href);
    for (const name of PARTS) {
      if (place[name]) url.searchParams.set(name, place[name]);
      else url.searchParams.delete(name);
    }
    url.hash = "";
    url.search = url.search.replaceAll("%2C", ",").replaceAll("%7E", "~");
    history.pushState(history.state, "", url);
    now = keyOf(place);
  }

  const selected = () => {
    const tab = document.querySelector('#tabs [role="tab"][aria-selected="true"]');
    return TABS[tab?.textContent.trim()] ?? "";
  };

  // -- conversations

  function chats() {
    try {
      const { last = "", races = {} } = JSON.parse(sessionStorage.getItem(CHATS) ?? "{}");
      return { last, races };
    } catch {
      return { last: "", races: {} };
    }
  }

  /** The race of a place; the last one for a place that is no race. */
  const raceOf = (place) => place.race || (place.run || place.follow || place.tab ? chats().last : "");

  function chatOf(place) {
    const race = raceOf(place);
    const { races } = chats();
    return race ? (Object.hasOwn(races, race) ? races[race] : { race }) : null;
  }

  // -- the form: what its controls have, by race

  const FORMS = "specscope-forms"; // in the tab's storage: {race: values}
  const LONGEST = 100_000; // characters of a value
  let form = null; // the values now; null until the page is as it was
  let formOf = raceOf(here());

  function forms() {
    try {
      return JSON.parse(sessionStorage.getItem(FORMS) ?? "{}");
    } catch {
      return {};
    }
  }

  /** Store the form of the race that is shown; texts that are too long for the tab's storage are left out. */
  function store() {
    if (!form) return;
    const values = form.map((value) => (typeof value === "string" && value.length > LONGEST ? null : value));
    const rest = Object.entries(forms()).filter(([race]) => race !== formOf).slice(-MOST);
    sessionStorage.setItem(FORMS, JSON.stringify(Object.fromEntries([...rest, [formOf, values]])));
  }

  /** Note the values of all controls. */
  function note(values) {
    form = values;
  }

  /** Note the values that the page begins with, unless the form will be as it was. */
  function begin(values) {
    form ??= noted(here())?.values ?? values;
  }

  const noted = (place) => {
    const [race, all] = [raceOf(place), forms()];
    return Object.hasOwn(all, race) && all[race] ? { values: all[race] } : null;
  };

  window.addEventListener("pagehide", store);

  /** Keep every conversation that the component gets, and give the page the address of a new race. */
  function keep(props, watch) {
    watch("value", () => {
      if (!props.value) return;
      const chat = JSON.parse(props.value);
      const { races } = chats();
      const rest = Object.entries(races).filter(([race]) => race !== chat.race).slice(1 - MOST);
      const all = chat.race ? [...rest, [chat.race, chat]] : rest;
      sessionStorage.setItem(CHATS, JSON.stringify({ last: chat.race, races: Object.fromEntries(all) }));
      if (chat.race !== formOf) {
        if (!formOf) store(); // what was changed after a race belongs to the next one
        formOf = chat.race;
        store();
      }
      if (selected() === "" && !(chat.race in races)) go({ race: chat.race });
    });
  }

  const kept = () => [chatOf(here()), noted(here())];

  /** Whether this visit begins with something else than the first page. */
  const later = () => Object.values(here()).some(Boolean);

  // -- clicks and Back

  document.addEventListener("click", (event) => {
    const tab = event.target.closest?.('#tabs [role="tab"]');
    if (event.target.closest?.("#history-back")) go({ tab: "history" });
    else if (tab) {
      const name = TABS[tab.textContent.trim()];
      if (name === undefined || name === selected()) return;
      if (name === "") go({ race: chats().last });
      else if (name === "history" && (heading() || followed())) go(opened());
      else go({ tab: name });
    }
  }, true);

  /** A link to a table of the papers unfolds it. The page's base address is not its own, so the browser would leave. */
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('.papers a[href^="#"]');
    const table = link && document.getElementById(link.getAttribute("href").slice(1))?.closest("details");
    if (!table) return;
    event.preventDefault();
    table.open = true;
    table.scrollIntoView();
    table.querySelector("summary").focus({ preventScroll: true });
  });

  /** The runs that are open in the history, also while another tab is shown. */
  const heading = () => document.querySelector("#history-heading .app-opened")?.dataset.runs ?? "";

  /** The files that are followed there. */
  const followed = () => document.querySelector("#follow-line .app-follow")?.dataset.files ?? "";

  const opened = () => (heading() ? { run: heading() } : { follow: followed() });

  /** Give an opened comparison, or files that are followed, their address. */
  function compared() {
    if ((heading() || followed()) && selected() === "history") go(opened());
  }

  /** Tell the server when Back or Forward leads to another place. */
  function follow(trigger, moved) {
    window.addEventListener("popstate", () => {
      const place = here();
      if (keyOf(place) === now) return; // the fragment only
      now = keyOf(place);
      store();
      if (!place.run && !place.follow && !place.tab) sessionStorage.setItem(CHATS, JSON.stringify({ ...chats(), last: place.race }));
      formOf = raceOf(place);
      trigger(moved, { ...place, chat: chatOf(place), noted: noted(place) });
    });
  }

  return { go, keep, kept, begin, note, later, compared, follow };
})();
