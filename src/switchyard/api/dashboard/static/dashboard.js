"use strict";
// What pages do beside being read: the theme, relative times, the keyboard, and staying up to date.
// Without it every page works; then it is as old as its last load.
(() => {
  const root = document.documentElement;
  const THEME = "switchyard-theme";
  root.classList.add("scripted");

  // Before anything is drawn.
  try {
    const kept = localStorage.getItem(THEME);
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* a browser that keeps nothing */ }

  function switchTheme() {
    const isDark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    try { localStorage.setItem(THEME, root.dataset.theme); } catch { /* as above */ }
  }

  // Relative times, by the server's clock.
  let ahead = 0; // milliseconds that this clock is ahead of the server's

  function words(seconds, units = 2) {
    const whole = Math.round(seconds);
    if (whole < 60) return `${whole} s`;
    for (const [size, unit, smallSize, small] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
      if (whole < size) continue;
      const rest = Math.floor((whole % size) / smallSize);
      return `${Math.floor(whole / size)} ${unit}` + (rest && units > 1 ? ` ${rest} ${small}` : "");
    }
    return "";
  }

  function tellTimes() {
    const now = Date.now() - ahead;
    for (const each of document.querySelectorAll("time[data-ago]")) {
      const past = (now - Date.parse(each.dateTime)) / 1000;
      // A page takes a while to come: what has just happened may seem to be about to.
      const text = past > -3 && past < 1 ? "now" : past > 0 ? `${words(past, 1)} ago` : `in ${words(-past)}`;
      if (each.textContent !== text) each.textContent = text;
    }
    for (const each of document.querySelectorAll("time[data-since]")) {
      const text = words(Math.max(0, (now - Date.parse(each.dateTime)) / 1000));
      if (each.textContent !== text) each.textContent = text;
    }
  }

  // Takes over what differs, and leaves the rest alone: focus, selection, what is open and what is
  // being typed stay, also where something comes or goes before it.
  function morph(old, fresh) {
    let known = old.firstChild;
    for (const node of [...fresh.childNodes]) {
      const match = node.nodeType === Node.ELEMENT_NODE ? alike(known, node) : known;
      if (!match || match.nodeType !== node.nodeType) { old.insertBefore(node, known); continue; }
      while (known !== match) known = removed(known);
      known = match.nextSibling;
      if (match.nodeType !== Node.ELEMENT_NODE) {
        if (match.nodeValue !== node.nodeValue) match.nodeValue = node.nodeValue;
      } else if (!match.isEqualNode(node)) {
        for (const { name } of [...match.attributes])
          if (!node.hasAttribute(name) && name !== "open") match.removeAttribute(name);
        for (const { name, value } of node.attributes)
          if (match.getAttribute(name) !== value) match.setAttribute(name, value);
        const isTouched = match === document.activeElement && "value" in match;
        if (!isTouched) morph(match, node);
      }
    }
    while (known) known = removed(known);
  }

  // The next element of that kind, from here on.
  function alike(known, node) {
    while (known && (known.nodeName !== node.nodeName || known.id !== node.id)) known = known.nextSibling;
    return known;
  }

  function removed(node) {
    const next = node.nextSibling;
    node.remove();
    return next;
  }

  // Up to date, while somebody looks.
  let source = null;

  function tellState(state, why = "") {
    tellTrouble(state === "old" ? why : "");
    const shown = document.querySelector("[data-live-state]");
    if (!shown) return;
    shown.hidden = false;
    shown.dataset.liveState = state;
    shown.querySelector("[data-live-text]").textContent = { on: "live", off: "not connected", old: "not up to date", paused: "paused" }[state];
  }

  // Why the page is not read again, until it is.
  function tellTrouble(why) {
    const told = document.querySelector("[data-trouble]");
    if (!told || told.hidden === !why) return;
    told.hidden = !why;
    const time = new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    told.querySelector("span").textContent = why ? `${why}. This page is as it was at ${time}.` : "";
  }

  function follow() {
    if (source || document.hidden || !document.querySelector("[data-region]")) return;
    source = new EventSource(location.pathname + location.search);
    source.addEventListener("open", () => tellState("on"));
    source.addEventListener("region", (event) => {
      const { name, html } = JSON.parse(event.data);
      const region = document.querySelector(`[data-region="${name}"]`);
      if (!region) return;
      const fresh = document.createElement("template");
      fresh.innerHTML = html;
      morph(region, fresh.content);
      tellTimes();
    });
    source.addEventListener("stale", (event) => tellState("old", JSON.parse(event.data).why));
    source.addEventListener("fresh", () => tellState("on"));
    source.addEventListener("error", () => {
      tellState("off");
      if (source && source.readyState === EventSource.CLOSED) {
        unfollow();
        setTimeout(checkSession, 1000);
      }
    });
  }

  function unfollow() {
    if (source) source.close();
    source = null;
  }

  // What a job writes, while it does and somebody looks.
  const MAX_OUTPUT = 200000; // characters that are kept on the page
  const STEERING = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]/g;
  let output = null;
  let written = 0; // characters of the job's text until now, as the server counts them

  function printable(text) {
    return text.replace(STEERING, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
  }

  function followOutput() {
    const section = document.querySelector("[data-output]");
    if (!section || output || document.hidden) return;
    const shown = section.querySelector("pre");
    output = new EventSource(section.dataset.output);
    output.addEventListener("text", (event) => {
      const { text, offset } = JSON.parse(event.data);
      if (typeof text !== "string" || !Number.isInteger(offset)) return;
      section.hidden = false;
      const isAtEnd = shown.scrollHeight - shown.scrollTop - shown.clientHeight < 40;
      if (offset === 0) shown.textContent = "";
      else if (offset !== written) shown.append("[…] ");
      written = offset + [...text].length;
      shown.append(printable(text));
      if (shown.textContent.length > MAX_OUTPUT) shown.textContent = `[…] ${shown.textContent.slice(-MAX_OUTPUT / 2)}`;
      if (isAtEnd) shown.scrollTop = shown.scrollHeight;
    });
    output.addEventListener("end", () => {
      unfollowOutput();
      section.removeAttribute("data-output");
    });
  }

  function unfollowOutput() {
    if (output) output.close();
    output = null;
  }

  // Nobody is let in any more, or the service is away for a while.
  async function checkSession() {
    if (document.hidden || source) return;
    try {
      const answer = await fetch(location.href, { redirect: "manual", cache: "no-store" });
      if (answer.type === "opaqueredirect") location.reload();
      else if (answer.ok) follow();
      else setTimeout(checkSession, 5000);
    } catch { setTimeout(checkSession, 5000); }
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      unfollow();
      unfollowOutput();
      tellState("paused");
    } else {
      follow();
      followOutput();
    }
  });
  addEventListener("pagehide", () => { unfollow(); unfollowOutput(); });

  // Uploads: many at once, a few at a time, each with its progress. Without this it is a form.
  const AT_ONCE = 3;

  function upload(form) {
    const input = form.querySelector("input[type=file]");
    const drop = form.querySelector("[data-drop]"), list = form.querySelector("[data-uploads]");
    const waiting = [];
    let running = 0;
    input.multiple = true;
    form.querySelector("[data-drop-hint]").hidden = false;

    function send({ file, row }) {
      const bar = row.querySelector("progress"), told = row.querySelector(".told");
      const end = (text, isWrong) => {
        running -= 1;
        told.textContent = text;
        row.classList.toggle("failed", isWrong);
        next();
      };
      if (file.size > Number(form.dataset.maxBytes)) return end("too large", true);
      const fields = new FormData(form), request = new XMLHttpRequest();
      fields.delete("file");
      fields.append("file", file);
      request.upload.addEventListener("progress", (event) => {
        bar.value = event.loaded / (event.total || 1);
        told.textContent = bar.value < 1 ? `${Math.floor(100 * bar.value)} %` : "taken in …";
      });
      request.addEventListener("error", () => end("the connection broke: send it again", true));
      request.addEventListener("load", () => {
        bar.value = 1;
        const page = new DOMParser().parseFromString(request.responseText, "text/html");
        if (request.status >= 400) {
          const why = page.querySelector("[data-why]");
          return end(why ? why.textContent : `refused (${request.status})`, true);
        }
        const link = document.createElement("a");
        link.href = request.responseURL;
        link.textContent = file.name;
        row.firstChild.replaceWith(link);
        end(new URL(link.href).searchParams.has("known") ? "known already" : "sent", false);
      });
      request.open("POST", form.action);
      request.send(fields);
      return undefined;
    }

    function next() {
      while (running < AT_ONCE && waiting.length) {
        running += 1;
        send(waiting.shift());
      }
    }

    function add(files) {
      for (const file of files) {
        const row = document.createElement("li"), name = document.createElement("span");
        const bar = document.createElement("progress"), told = document.createElement("span");
        name.textContent = file.name;
        bar.max = 1;
        bar.value = 0;
        bar.setAttribute("aria-label", file.name);
        told.className = "told";
        told.textContent = "waits";
        row.append(name, bar, told);
        list.append(row);
        waiting.push({ file, row });
      }
      list.hidden = false;
      next();
    }

    form.addEventListener("submit", (event) => {
      event.preventDefault();
      add(input.files);
      input.value = "";
    });
    for (const name of ["dragover", "dragenter"])
      drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("over");
      add(event.dataTransfer.files);
    });
  }

  // Commands, to be pasted elsewhere.
  async function copy(button) {
    const source = button.previousElementSibling;
    try { await navigator.clipboard.writeText(source.textContent); } catch {
      getSelection().selectAllChildren(source); // without the right to write there
      document.execCommand("copy");
    }
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1500);
  }

  addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
  });

  // A page that can't be drawn: nothing is to be seen below its boxes.
  addEventListener("error", (event) => {
    if (event.target.matches?.(".page-picture img")) event.target.closest(".page-picture").classList.add("failed");
  }, true);

  // The keyboard.
  let isGoing = false;

  function step(by) {
    const rows = [...document.querySelectorAll("[data-rows] [data-row]")];
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement.closest("[data-row]"));
    const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }

  addEventListener("keydown", (event) => {
    const field = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input:not([type=checkbox]):not([type=radio]), textarea, select")) {
      if (event.key === "Escape") field.blur();
      return;
    }
    if (isGoing) {
      isGoing = false;
      const link = document.querySelectorAll(".top nav a")[Number(event.key) - 1];
      if (link) { link.click(); event.preventDefault(); return; }
    }
    if (event.key === "/") {
      const search = document.querySelector("[data-search]");
      if (search) { search.focus(); event.preventDefault(); }
    } else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "g") isGoing = true;
    else if (event.key === "t") switchTheme();
    else if (event.key === "?") document.getElementById("help").showModal();
    else if (event.key === "Enter" && field.matches("[data-row]")) {
      const link = field.querySelector("a[href]");
      if (link) link.click();
    }
  });

  addEventListener("DOMContentLoaded", () => {
    const now = Number(document.body.dataset.now);
    if (now) ahead = Date.now() - now * 1000;
    const theme = document.querySelector("[data-theme-switch]");
    if (theme) { theme.hidden = false; theme.addEventListener("click", switchTheme); }
    const help = document.querySelector("[data-help]");
    if (help) { help.hidden = false; help.addEventListener("click", () => document.getElementById("help").showModal()); }
    // On a narrow screen the views are a row that is moved: the present one may be out of sight.
    const view = document.querySelector(".top nav [aria-current]");
    if (view) view.parentElement.scrollLeft = view.offsetLeft - (view.parentElement.clientWidth - view.offsetWidth) / 2;
    document.querySelectorAll("[data-upload]").forEach(upload);
    setInterval(tellTimes, 1000);
    follow();
    followOutput();
  });
})();
