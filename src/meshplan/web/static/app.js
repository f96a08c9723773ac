// The page works without this script; with it, answers come without loading the page anew.
"use strict";

(() => {
  const form = document.getElementById("ask");
  const answer = document.getElementById("answer");
  const live = document.getElementById("live");
  document.documentElement.classList.add("scripted");
  if (!form || !answer) return;

  let asking = null; // the request under way
  let watching = null; // the search under way
  let shown = location.search; // the question whose answer is on the page
  const opened = new Set(); // ids of details that people opened

  const query = () => {
    const found = new URLSearchParams();
    const usual = {};
    for (const field of form.querySelectorAll("[data-usual]")) usual[field.name] = field.dataset.usual;
    for (const [key, value] of new FormData(form)) {
      const idle = value === "" || value === usual[key] || (key.startsWith("log2_") && Number(value) === 0);
      if (!idle) found.append(key, value);
    }
    return found.toString();
  };

  const say = (text) => { live.textContent = text || ""; };

  async function refresh({ push = false, focus = "" } = {}) {
    if (asking) asking.abort();
    if (watching) { watching.close(); watching = null; }
    const mine = asking = new AbortController();
    const where = "?" + query();
    document.body.classList.add("busy");
    answer.setAttribute("aria-busy", "true");
    try {
      const reply = await fetch("/answer" + where, { signal: mine.signal });
      const html = await reply.text();
      if (mine.signal.aborted) return;
      show(reply.ok || reply.status === 422 ? html : sentence(html));
      history[push ? "pushState" : "replaceState"](null, "", "/" + where);
      shown = location.search;
      const target = focus && document.querySelector(focus + " h2");
      if (target) { target.focus(); target.scrollIntoView({ block: "start" }); }
    } catch (error) {
      if (error.name !== "AbortError") say(String(error));
    } finally {
      if (asking === mine) {
        asking = null;
        document.body.classList.remove("busy");
        answer.removeAttribute("aria-busy");
      }
    }
  }

  // Of a whole page that tells an error, the part that tells it.
  function sentence(html) {
    const page = new DOMParser().parseFromString(html, "text/html");
    const told = page.querySelector("[role=alert]");
    return told ? told.outerHTML : html;
  }

  function show(html) {
    answer.innerHTML = html;
    const told = answer.querySelector("[data-said]");
    if (told) say(told.dataset.said);
    for (const id of opened) {
      const box = document.getElementById(id);
      if (box) box.open = true;
    }
    watch();
    for (const box of answer.querySelectorAll("[data-part]")) load(box, box.dataset.part);
  }

  // Fetch a part of the page that takes longer than the rest.
  async function load(box, where) {
    box.setAttribute("aria-busy", "true");
    const reply = await fetch(where, { headers: { "X-Part": "1" } });
    const html = await reply.text();
    const part = document.createElement("div");
    part.innerHTML = reply.ok ? html : sentence(html);
    box.replaceWith(part);
    const told = part.querySelector("[role=status], [role=alert]");
    if (told) say(told.textContent);
  }

  function watch() {
    const box = answer.querySelector("[data-job]");
    if (!box) return;
    const note = box.querySelector("[data-note]");
    const lang = document.documentElement.lang.slice(0, 2);
    watching = new EventSource("/progress?job=" + encodeURIComponent(box.dataset.job) + "&lang=" + lang);
    watching.onmessage = (event) => {
      const told = JSON.parse(event.data);
      const words = [told.doing];
      if (told.priced) words.push(note.dataset.note + " " + told.priced.toLocaleString());
      if (told.best_s) words.push(note.dataset.best + " " + Number(told.best_s.toPrecision(4)) + " s");
      note.textContent = words.filter(Boolean).join(" · ");
      if (["done", "failed"].includes(told.state)) { watching.close(); watching = null; refresh(); }
      if (told.state === "cancelled") { watching.close(); watching = null; }
    };
  }

  form.addEventListener("submit", (event) => { event.preventDefault(); refresh({ push: true }); });

  // Fields outside the form belong to it too (pins, doubts), so changes are heard on the document.
  document.addEventListener("change", (event) => {
    const field = event.target;
    if (field.form !== form || !field.name) return;
    if (field.name === "pin") limitPins(field);
    if (!form.checkValidity()) { form.reportValidity(); return; }
    refresh();
  });

  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-cancel]")) return;
    event.preventDefault();
    const fields = new URLSearchParams(new FormData(event.target));
    fetch(event.target.action, { method: "POST", body: fields }).then((reply) => reply.text()).then((html) => {
      if (watching) { watching.close(); watching = null; }
      const page = new DOMParser().parseFromString(html, "text/html");
      show(page.getElementById("answer").innerHTML);
    });
  });

  const pins = [];
  function limitPins(box) {
    const at = pins.indexOf(box.value);
    if (at >= 0) pins.splice(at, 1);
    if (box.checked) pins.push(box.value);
    const checked = [...document.querySelectorAll("input[name=pin]:checked")];
    for (const other of checked) {
      if (checked.length > 2 && other !== box && !pins.slice(-2).includes(other.value)) other.checked = false;
    }
  }

  form.addEventListener("input", (event) => {
    if (event.target.type === "range") label(event.target);
  });

  function label(slider) {
    const log = Number(slider.value);
    const whole = log < 0 && Number.isInteger(log);
    const text = whole ? "×1/" + 2 ** -log : "×" + Number((2 ** log).toPrecision(3));
    form.querySelector(`output[for="${slider.id}"]`).textContent = text;
    slider.setAttribute("aria-valuetext", text);
  }
  for (const slider of form.querySelectorAll("input[type=range]")) label(slider);

  document.getElementById("reset").addEventListener("click", () => {
    for (const slider of form.querySelectorAll("input[type=range]")) { slider.value = 0; label(slider); }
    refresh();
  });

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (link.dataset.plan) {
      event.preventDefault();
      form.elements.plan.value = link.dataset.plan;
      refresh({ push: true, focus: "#plan" });
    } else if (link.dataset.lang) {
      event.preventDefault();
      const fields = new URLSearchParams(query());
      fields.set("lang", link.dataset.lang);
      location.href = "/?" + fields;
    }
  });

  document.addEventListener("toggle", (event) => {
    const box = event.target;
    if (!box.id || box.tagName !== "DETAILS") return;
    if (box.open) opened.add(box.id); else opened.delete(box.id);
    if (!box.open || !box.dataset.load || box.dataset.loaded) return;
    box.dataset.loaded = "yes";
    load(box.lastElementChild, box.dataset.load);
  }, true);

  const drop = document.getElementById("drop");
  async function use(file) {
    if (!file) return;
    drop.elements.back.value = "?" + query();
    drop.elements.file_name.value = file.name;
    drop.elements.text.value = await file.text();
    drop.submit();
  }
  document.getElementById("drop-file").addEventListener("change", (event) => use(event.target.files[0]));
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dragging");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    use(event.dataTransfer.files[0]);
  });

  for (const box of answer.querySelectorAll("[data-part]")) load(box, box.dataset.part);
  window.addEventListener("popstate", () => {
    if (location.search !== shown) location.reload(); // not for the skip link, which only moves the focus
  });
  watch();
})();
