// Keys for those who like them, and a guard for what is not saved. Every page works without this file.
"use strict";

(() => {
  const isTyping = (element) =>
    element instanceof HTMLElement &&
    (element.isContentEditable || ["INPUT", "SELECT", "TEXTAREA"].includes(element.tagName));

  // ── What is not saved ─────────────────────────────────────────────────────

  let isSending = false;

  const isChanged = (field) => {
    if (field.type === "hidden" || !field.name) return false;
    if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
    if (field.tagName === "SELECT") {
      const options = [...field.options];
      const first = options.some((option) => option.defaultSelected) ? null : options[0];
      return options.some((option) => option.selected !== (option.defaultSelected || option === first));
    }
    return "defaultValue" in field && field.value !== field.defaultValue;
  };

  // A form that came back with something to put right holds text that is nowhere else.
  const isUnsaved = (form) => "unsaved" in form.dataset || [...form.elements].some(isChanged);

  const hasUnsaved = () => !isSending && [...document.querySelectorAll("form[data-guard]")].some(isUnsaved);

  addEventListener("submit", (event) => {
    // A draft is asked for without leaving the page (draft.js).
    if (!event.defaultPrevented && event.target.matches("form[data-guard]")) isSending = true;
  });

  // ── A new key ─────────────────────────────────────────────────────────────

  // One click or Tab takes all of it.
  const take = (field) => field instanceof HTMLInputElement && "copy" in field.dataset && field.select();

  addEventListener("focusin", (event) => take(event.target));
  take(document.activeElement);

  // ── Sent once ─────────────────────────────────────────────────────────────

  // So long after sending, whoever has stopped the page from loading may press again.
  const SEND_AGAIN_AFTER_MS = 20_000;

  /** The buttons that wait for the reply, of each form that was sent. */
  const sent = new Map();

  const freeButtons = (form) => {
    for (const button of sent.get(form) ?? []) button.disabled = false;
    sent.delete(form);
  };

  // A second press of the same button would do the same again: a note would be there twice.
  addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.getAttribute("method")?.toLowerCase() !== "post") return;
    if (sent.has(form)) {
      event.preventDefault();
      return;
    }
    const buttons = [...form.elements].filter((field) => field.type === "submit" && !field.disabled);
    sent.set(form, buttons);
    // The browser reads the form after this, and leaves out what is disabled.
    setTimeout(() => {
      if (sent.has(form)) for (const button of buttons) button.disabled = true;
    });
    setTimeout(() => freeButtons(form), SEND_AGAIN_AFTER_MS);
  });

  // Whoever goes on writing has stopped the page from loading.
  addEventListener("input", (event) => {
    if (event.target.form) freeButtons(event.target.form);
  });

  addEventListener("beforeunload", (event) => {
    if (hasUnsaved()) event.preventDefault();
  });

  // A part of the page would take the form with it and the browser would not ask. As a whole page, it does.
  document.addEventListener("htmx:confirm", (event) => {
    const link = event.detail.elt.closest("a[href]");
    if (link && hasUnsaved()) {
      event.preventDefault();
      location.assign(link.href);
    }
  });

  // A page that comes out of the browser's own memory can be sent again.
  addEventListener("pageshow", () => {
    isSending = false;
    for (const form of [...sent.keys()]) freeButtons(form);
  });

  // ── When the portal does not answer ───────────────────────────────────────

  const trouble = document.getElementById("trouble");

  const say = (text) => {
    if (!trouble) return;
    trouble.textContent = text;
    trouble.hidden = text === "";
  };

  document.addEventListener("htmx:sendError", () =>
    say("The portal does not answer. What you see may be out of date; try again in a moment."),
  );
  document.addEventListener("htmx:timeout", () => say("The portal takes too long to answer. Try again in a moment."));
  document.addEventListener("htmx:afterOnLoad", () => say(""));

  // A page that refuses takes the place of the one that asked, and the reader goes there.
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target.id === "main") document.getElementById("main")?.focus();
  });

  // ── Keys ──────────────────────────────────────────────────────────────────

  const SWITCH = "chancery-keys";
  const keys = document.getElementById("keys");
  const keysSwitch = document.getElementById("keys-switch");

  // A browser that keeps nothing for us has the keys on.
  const areOn = () => {
    try {
      return localStorage.getItem(SWITCH) !== "off";
    } catch {
      return true;
    }
  };

  const showSwitch = () => {
    if (keysSwitch) keysSwitch.textContent = areOn() ? "Switch these keys off" : "Switch these keys on";
  };

  if (keys) keys.hidden = false;
  showSwitch();
  keysSwitch?.addEventListener("click", () => {
    try {
      localStorage.setItem(SWITCH, areOn() ? "off" : "on");
    } catch {
      // Then they stay on.
    }
    showSwitch();
  });

  let cameFrom = null;

  const openKeys = () => {
    if (!keys) return;
    cameFrom = document.activeElement;
    keys.open = true;
    keys.querySelector("summary").focus();
    keys.scrollIntoView({ block: "nearest" });
  };

  const closeKeys = () => {
    if (!keys?.open) return false;
    keys.open = false;
    if (cameFrom instanceof HTMLElement && cameFrom.isConnected) cameFrom.focus();
    cameFrom = null;
    return true;
  };

  const move = (step) => {
    const rows = [...document.querySelectorAll("[data-row]")];
    if (rows.length === 0) return;
    const here = rows.findIndex((row) => row.contains(document.activeElement));
    const next = here < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(here + step, 0), rows.length - 1);
    rows[next].focus({ focusVisible: true });
    rows[next].scrollIntoView({ block: "nearest" });
  };

  // A row of the list is a link, which the browser opens; an entry is opened by its own link.
  const open = () => {
    const row = document.activeElement;
    if (!row?.matches("[data-row]:not(a)")) return false;
    const link = row.querySelector("a[data-open]");
    link?.click();
    return Boolean(link);
  };

  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Escape") {
      if (closeKeys()) event.preventDefault();
      return;
    }
    if (isTyping(event.target) || !areOn()) return;
    const search = document.getElementById("q");
    switch (event.key) {
      case "/":
        if (!search) return;
        search.focus();
        search.select();
        break;
      case "j":
        move(1);
        break;
      case "k":
        move(-1);
        break;
      case "?":
        if (!closeKeys()) openKeys();
        break;
      case "Enter":
        if (!open()) return;
        break;
      default:
        return;
    }
    event.preventDefault();
  });

  // A form that was opened, or that has something to put right, is where the reader goes on.
  document.querySelector(".error-summary")?.focus();
})();
