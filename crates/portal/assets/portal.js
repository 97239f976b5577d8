// Keyboard shortcuts and a guard against unsaved changes. Every page works without this file.
"use strict";

(() => {
  const isTyping = (element) =>
    element instanceof HTMLElement &&
    (element.isContentEditable || ["INPUT", "SELECT", "TEXTAREA"].includes(element.tagName));

  // ── Unsaved changes ───────────────────────────────────────────────────────

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

  // A form that is shown again with problems contains text that is saved nowhere.
  const isUnsaved = (form) => "unsaved" in form.dataset || [...form.elements].some(isChanged);

  const hasUnsaved = () => !isSending && [...document.querySelectorAll("form[data-guard]")].some(isUnsaved);

  addEventListener("submit", (event) => {
    // A draft is requested without leaving the page (draft.js).
    if (!event.defaultPrevented && event.target.matches("form[data-guard], form[data-discards]")) isSending = true;
  });

  // ── Copy ──────────────────────────────────────────────────────────────────

  // Select the whole key on click or Tab.
  const take = (field) => field instanceof HTMLInputElement && "copy" in field.dataset && field.select();

  addEventListener("focusin", (event) => take(event.target));
  take(document.activeElement);

  // The button is hidden without this file: then people select the text and copy it themselves.
  const copy = async (source) => {
    try {
      await navigator.clipboard.writeText(source.value ?? source.textContent);
      return true;
    } catch {
      // Without HTTPS there is no clipboard API.
      if (source.select) source.select();
      else getSelection().selectAllChildren(source);
      return document.execCommand("copy");
    }
  };

  for (const button of document.querySelectorAll("button[data-copies]")) {
    const source = document.getElementById(button.dataset.copies);
    const status = document.querySelector(`[data-copied-by="${button.dataset.copies}"]`);
    if (!source || !status) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const isCopied = await copy(source);
      status.textContent = isCopied ? "Copied." : "Could not copy. Select the text and copy it.";
    });
  }

  // ── Time zone of the profile ──────────────────────────────────────────────

  const zones = document.getElementById("time_zone");
  const zoneButton = document.getElementById("browser-zone");
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

  if (zones && zoneButton && zones.value !== zone && [...zones.options].some((option) => option.value === zone)) {
    zoneButton.hidden = false;
    zoneButton.textContent = `Use this browser’s time zone (${zone.replaceAll("_", " ")})`;
    zoneButton.addEventListener("click", () => {
      zones.value = zone;
      zoneButton.hidden = true;
      zones.focus();
    });
  }

  // ── Print ─────────────────────────────────────────────────────────────────

  for (const button of document.querySelectorAll("button[data-print]")) {
    button.hidden = false;
    button.addEventListener("click", () => print());
  }

  // ── Double submission ─────────────────────────────────────────────────────

  // After this long the user may submit again, in case loading was stopped.
  const SEND_AGAIN_AFTER_MS = 20_000;

  /** Submitted forms, and their disabled buttons. */
  const sent = new Map();

  const freeButtons = (form) => {
    for (const button of sent.get(form) ?? []) button.disabled = false;
    sent.delete(form);
  };

  // Prevents a second submission, which would, for example, create a note twice.
  addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.getAttribute("method")?.toLowerCase() !== "post") return;
    if (sent.has(form)) {
      event.preventDefault();
      return;
    }
    const buttons = [...form.elements].filter((field) => field.type === "submit" && !field.disabled);
    sent.set(form, buttons);
    // Delayed, because the browser reads the form after this event and omits disabled buttons.
    setTimeout(() => {
      if (sent.has(form)) for (const button of buttons) button.disabled = true;
    });
    setTimeout(() => freeButtons(form), SEND_AGAIN_AFTER_MS);
  });

  // A user who continues typing has stopped the page from loading.
  addEventListener("input", (event) => {
    if (event.target.form) freeButtons(event.target.form);
  });

  addEventListener("beforeunload", (event) => {
    if (hasUnsaved()) event.preventDefault();
  });

  // Replacing part of the page would discard the form without a warning. Loading the whole page triggers the browser's prompt.
  document.addEventListener("htmx:confirm", (event) => {
    const link = event.detail.elt.closest("a[href]");
    if (link && hasUnsaved()) {
      event.preventDefault();
      location.assign(link.href);
    }
  });

  // A page restored from the back-forward cache can be submitted again.
  addEventListener("pageshow", () => {
    isSending = false;
    for (const form of [...sent.keys()]) freeButtons(form);
  });

  // ── Connection errors ─────────────────────────────────────────────────────

  const trouble = document.getElementById("trouble");

  const say = (text) => {
    if (!trouble) return;
    trouble.textContent = text;
    trouble.hidden = text === "";
  };

  document.addEventListener("htmx:sendError", () =>
    say("The portal is not responding. This page may be out of date. Try again in a moment."),
  );
  document.addEventListener("htmx:timeout", () => say("The request timed out. Try again in a moment."));
  document.addEventListener("htmx:afterOnLoad", () => say(""));

  // An error page replaces the main content and gets the focus.
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target.id === "main") document.getElementById("main")?.focus();
  });

  // ── Keyboard shortcuts ────────────────────────────────────────────────────

  const SWITCH = "chancery-keys";
  const keys = document.getElementById("keys");
  const keysSwitch = document.getElementById("keys-switch");

  // Shortcuts are on if local storage is unavailable.
  const areOn = () => {
    try {
      return localStorage.getItem(SWITCH) !== "off";
    } catch {
      return true;
    }
  };

  const showSwitch = () => {
    if (keysSwitch) keysSwitch.textContent = areOn() ? "Turn off shortcuts" : "Turn on shortcuts";
  };

  if (keys) keys.hidden = false;
  showSwitch();
  keysSwitch?.addEventListener("click", () => {
    try {
      localStorage.setItem(SWITCH, areOn() ? "off" : "on");
    } catch {
      // Local storage is unavailable, so shortcuts stay on.
    }
    showSwitch();
  });

  let cameFrom = null;

  const openKeys = () => {
    if (!keys) return;
    cameFrom = document.activeElement;
    keys.open = true;
    keys.querySelector("summary")?.focus();
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

  // A row of the list is itself a link; an entry contains one.
  const open = () => {
    const row = document.activeElement;
    if (!row?.matches("[data-row]:not(a)")) return false;
    const link = row.querySelector("a[data-open]");
    link?.click();
    return Boolean(link);
  };

  // Save: Ctrl+Enter or Ctrl+S, with Cmd on a Mac, in the form that has the focus.
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || event.altKey || event.shiftKey) return;
    if (!(event.ctrlKey || event.metaKey) || !["Enter", "s", "S"].includes(event.key)) return;
    const form = event.target.closest?.("form[data-guard]");
    if (!form) return;
    event.preventDefault();
    form.requestSubmit(form.querySelector("button.button-primary"));
  });

  // Create and edit: the page marks the links. An entry that has the focus is edited itself.
  const follow = (key) => {
    const entry = key === "e" && document.activeElement?.closest("[data-row]")?.querySelector("a[data-open]");
    const link = entry || document.querySelector(`a[data-shortcut="${key}"]`);
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
      case "n":
      case "e":
        if (!follow(event.key)) return;
        break;
      case "Enter":
        if (!open()) return;
        break;
      default:
        return;
    }
    event.preventDefault();
  });

  // A form with problems gets the focus at its summary, or at the only invalid field.
  (document.querySelector(".error-summary") ?? document.querySelector("[aria-invalid=true]"))?.focus();
})();
