// Streams a draft into the letter's editor, or an edit into the place of the selected text. Without this script the same buttons
// submit the same form, and the reply is a page.
//
// The previous text stays in the form, so that it is stored with the rest (autosave.js), and one button restores it. So does the
// browser's undo. A draft that fails restores it automatically.
"use strict";

(() => {
  /** The texts before each draft of a form, newest last. */
  const formerTexts = new WeakMap();
  /** As many as the server takes back. */
  const MAX_FORMER_TEXTS = 3;
  /** The AbortController of a form's running draft. */
  const running = new WeakMap();

  const part = (form, name) => form.querySelector(`[data-draft-${name}]`);
  const editor = (form) => form.querySelector('textarea[name="text"]');

  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    const form = event.target;
    if (button?.matches("[data-draft], [data-rewrite]")) {
      event.preventDefault();
      if (!running.has(form)) draft(form, button);
    } else if (running.has(form)) {
      // Do not save a partial draft in place of the user's own text.
      event.preventDefault();
      say(form, "The draft is still being written. Stop it or wait, then save.");
    }
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-draft-stop], [data-draft-back]");
    if (!button) return;
    const form = button.closest("form");
    if (button.hasAttribute("data-draft-stop")) running.get(form)?.abort();
    else putBack(form);
  });

  document.addEventListener("input", (event) => {
    const form = event.target.form;
    if (!form || !part(form, "panel")?.contains(event.target)) return;
    unmark(form);
    showCost(form);
  });

  // Leaving the page closes the connection, which stops the model.
  window.addEventListener("pagehide", () => document.querySelectorAll("form").forEach((form) => running.get(form)?.abort()));

  /** What an edit replaces: the selection, or without one the whole text. A draft replaces the whole text. */
  function rangeToReplace(text, isRewrite) {
    const { selectionStart: start, selectionEnd: end, value } = text;
    return isRewrite && start < end ? { start, end } : { start: 0, end: value.length };
  }

  const actionButtons = (form) => form.querySelectorAll("[data-draft], [data-rewrite]");

  async function draft(form, button) {
    const text = editor(form);
    const mine = text.value;
    const isRewrite = button.hasAttribute("data-rewrite");
    const range = rangeToReplace(text, isRewrite);
    const stop = new AbortController();
    const body = new URLSearchParams(new FormData(form));
    if (isRewrite) {
      body.set("change", button.value);
      body.set("selection_start", range.start);
      body.set("selection_end", range.end);
    }
    running.set(form, stop);
    clear(form);
    say(form, isRewrite ? "Reading text…" : "Reading context…");
    text.readOnly = true;
    text.setAttribute("aria-busy", "true");
    const isButtonFocused = document.activeElement === button;
    actionButtons(form).forEach((other) => (other.disabled = true));
    show(part(form, "stop"), true);
    // A disabled or hidden button loses the focus.
    if (isButtonFocused) part(form, "stop")?.focus({ preventScroll: true });
    show(part(form, "back"), false);
    let written = "";
    let ending = null;
    try {
      const reply = await fetch(button.formAction, {
        method: "POST",
        body,
        headers: { accept: "text/event-stream, application/json" },
        credentials: "same-origin",
        redirect: "error",
        signal: stop.signal,
      });
      if (!reply.ok) {
        ending = { name: "failed", data: { words: await refusalWords(reply) } };
      } else {
        for await (const { name, data } of events(reply.body)) {
          if (name === "delta") {
            if (!written) say(form, isRewrite ? "Editing…" : "Writing draft…");
            written += data.text;
            text.value = mine.slice(0, range.start) + written + mine.slice(range.end);
            if (!isRewrite) text.scrollTop = text.scrollHeight;
          } else if (name === "finished" || name === "failed") {
            ending = { name, data };
          }
        }
      }
    } catch (error) {
      // A connection that breaks after the last event changes nothing.
      ending ??= stop.signal.aborted ? { name: "stopped" } : null;
    }
    running.delete(form);
    text.readOnly = false;
    text.removeAttribute("aria-busy");
    actionButtons(form).forEach((other) => (other.disabled = false));
    if (document.activeElement === part(form, "stop")) button.focus({ preventScroll: true });
    show(part(form, "stop"), false);
    end(form, { mine, range, isRewrite, written, ending });
  }

  function end(form, { mine, range, isRewrite, written, ending }) {
    const text = editor(form);
    const isFinished = ending?.name === "finished";
    const isStopped = ending?.name === "stopped";
    // The last event has the text without what was repeated.
    const final = isFinished ? ending.data.text : written;
    // Untouched text keeps its undo history.
    if (written) {
      text.value = mine;
      // The next attempt edits the same passage.
      if (isRewrite && range.end - range.start < mine.length) text.setSelectionRange(range.start, range.end);
    }
    // A draft without any text replaces nothing.
    if ((isFinished && final) || (isStopped && written && !isRewrite)) {
      replaceText(text, final, range);
      remember(form, mine);
    } else if (!isRewrite) {
      // The partial draft can still be restored with one click.
      remember(form, written);
    } else {
      offerBack(form);
    }
    if (isFinished) finished(form, ending.data, isRewrite);
    else if (isStopped) {
      const partial = isRewrite
        ? "Stopped. Your text is untouched. The part that was written is billed."
        : "Stopped. The partial draft is in the editor and is billed.";
      say(form, written ? partial : "Stopped. Your text is untouched.");
    } else {
      say(form, "");
      const words =
        ending?.data?.words ?? "The connection was lost. Your text is untouched. The partial draft may be billed. Try again.";
      fail(form, words, ending?.data?.field);
    }
  }

  function finished(form, data, isRewrite) {
    receipt(form, data.words);
    const cost = `Cost: ${data.words.cost}.`;
    if (data.is_unfinished) say(form, `${isRewrite ? "Edit" : "Draft"} unfinished. ${cost}`);
    else say(form, `${isRewrite ? "Text edited. Check it, then save." : "Draft ready."} ${cost}`);
    notice(form, "unfinished", data.unfinished);
    notice(form, "checks", data.checks.join(" "));
    const title = form.querySelector('input[name="title"]');
    if (title && !title.value.trim() && data.title) {
      title.value = data.title;
      title.dispatchEvent(new Event("input", { bubbles: true }));
    }
    // The next request draws another text.
    const attempt = form.querySelector('input[name="attempt"]');
    if (attempt) attempt.value = String(Number(attempt.value) + 1);
    const button = part(form, "panel")?.querySelector("[data-draft]");
    if (button && !isRewrite) button.textContent = "Draft again";
  }

  /** Shows an amber notice, or hides it if there is no text. */
  function notice(form, name, words) {
    const place = part(form, name);
    if (!place) return;
    place.querySelector("span").textContent = words ?? "";
    show(place, Boolean(words));
  }

  /** Replaces the text as one step that the browser's undo reverts. Only this old command adds to the undo history. */
  function replaceText(text, draft, range = { start: 0, end: text.value.length }) {
    // As the editor itself has line breaks.
    const value = draft.replace(/\r\n?/g, "\n");
    const focused = document.activeElement;
    const whole = text.value.slice(0, range.start) + value + text.value.slice(range.end);
    text.focus({ preventScroll: true });
    text.setSelectionRange(range.start, range.end);
    const isDone = value ? document.execCommand("insertText", false, value) : document.execCommand("delete");
    if (!isDone || text.value !== whole) text.value = whole;
    // What is new stays selected after an edit, so that it can be edited again.
    if (range.start > 0 || value.length < whole.length) text.setSelectionRange(range.start, range.start + value.length);
    // Notifies the guard against unsaved changes (portal.js) and autosave.js.
    text.dispatchEvent(new Event("input", { bubbles: true }));
    // Someone who is typing elsewhere goes on there.
    if (focused !== text && focused?.matches("input, textarea")) focused.focus({ preventScroll: true });
  }

  function remember(form, former) {
    if (!former.trim()) return offerBack(form);
    const texts = formerTexts.get(form) ?? [];
    if (texts.at(-1) !== former) texts.push(former);
    formerTexts.set(form, texts);
    offerBack(form);
  }

  function offerBack(form) {
    const texts = formerTexts.get(form) ?? [];
    show(part(form, "back"), texts.length > 0);
    form.querySelectorAll("[data-draft-kept]").forEach((kept) => kept.remove());
    // The newest comes first, before those that the server has shown.
    for (const former of texts.slice(-MAX_FORMER_TEXTS)) {
      const kept = Object.assign(document.createElement("textarea"), { name: "former_text", value: former, hidden: true });
      kept.dataset.draftKept = "";
      form.prepend(kept);
    }
  }

  /** Each click restores the previous text. The current one goes to the end of the rotation. */
  function putBack(form) {
    const text = editor(form);
    const texts = formerTexts.get(form) ?? [];
    const former = texts.pop();
    if (former === undefined) return;
    if (text.value.trim()) texts.unshift(text.value);
    formerTexts.set(form, texts);
    offerBack(form);
    // They were about the text that is replaced.
    notice(form, "unfinished", "");
    notice(form, "checks", "");
    replaceText(text, former);
    say(form, "Your text is back in the editor.");
    text.focus();
  }

  function clear(form) {
    unmark(form);
    show(part(form, "failure"), false);
    notice(form, "unfinished", "");
    notice(form, "checks", "");
    const receiptPart = part(form, "receipt");
    if (receiptPart) show(receiptPart, false);
    const note = form.querySelector('[data-draft-word="note"]');
    if (note) note.textContent = "";
  }

  function receipt(form, words) {
    for (const [name, value] of Object.entries(words)) {
      const place = form.querySelector(`[data-draft-word="${CSS.escape(name)}"]`);
      if (place) place.textContent = value;
    }
    show(part(form, "receipt"), true);
  }

  /** Fields of the panel by their names in an event. Entries are a group, which gets its message as a description. */
  const FIELDS = { purpose: "draft-purpose", max_output_tokens: "draft-max", entries: "draft-entries" };

  /** Shows the message at the field as the server does, and moves the focus there. */
  function markField(field, words) {
    const isGroup = field.matches("fieldset");
    const message = Object.assign(document.createElement("p"), { className: "error", id: `${field.id}-error` });
    message.append(
      Object.assign(document.createElement("span"), { className: "visually-hidden", textContent: "Error: " }),
      words,
    );
    field.setAttribute("aria-describedby", `${field.getAttribute("aria-describedby") ?? ""} ${message.id}`.trim());
    if (isGroup) field.querySelector("legend").after(message);
    else {
      field.before(message);
      field.setAttribute("aria-invalid", "true");
    }
    (isGroup ? field.querySelector("input") : field).focus();
  }

  function unmark(form) {
    part(form, "panel")
      ?.querySelectorAll(".error")
      .forEach((message) => message.remove());
    for (const id of Object.values(FIELDS)) {
      const field = form.querySelector(`#${id}`);
      if (!field) continue;
      field.removeAttribute("aria-invalid");
      const others = (field.getAttribute("aria-describedby") ?? "").split(" ").filter((other) => other && other !== `${id}-error`);
      if (others.length > 0) field.setAttribute("aria-describedby", others.join(" "));
      else field.removeAttribute("aria-describedby");
    }
  }

  /** The highest cost for what is typed and selected: the same computation as the server's (drafting/estimate.rs). */
  function showCost(form) {
    const place = part(form, "cost");
    if (!place) return;
    const numbers = Object.fromEntries(Object.entries(place.dataset).map(([name, value]) => [name, Number(value)]));
    const output = Number(form.querySelector("#draft-max").value.replace(/[, ]/g, "") || NaN);
    const count = (number) => `${number.toLocaleString("en-US")} ${number === 1 ? "token" : "tokens"}`;
    if (!Number.isInteger(output) || output < numbers.min || output > numbers.max) {
      place.textContent = `Enter a whole number from ${numbers.min.toLocaleString("en-US")} to ${numbers.max.toLocaleString("en-US")}.`;
      return;
    }
    const chosen = [...form.querySelectorAll('input[name="entries"]:checked')];
    const purpose = new TextEncoder().encode(form.querySelector("#draft-purpose").value).length;
    const wanted = chosen.reduce((sum, choice) => sum + Number(choice.dataset.tokens), numbers.fixed + purpose);
    const input = Math.max(0, Math.min(wanted, numbers.context - output));
    const nanos = input * numbers.input + output * numbers.output;
    const decimals = String(nanos % 1e9)
      .padStart(9, "0")
      .replace(/0+$/, "")
      .padEnd(2, "0");
    const cost = `${place.dataset.currency}${Math.floor(nanos / 1e9).toLocaleString("en-US")}.${decimals}`;
    place.textContent = `At most ${cost} for ${count(output)} of output and up to ${count(input)} of input.`;
  }

  document.querySelectorAll("form").forEach((form) => showCost(form));

  function fail(form, words, name) {
    const field = name && form.querySelector(`#${FIELDS[name]}`);
    if (field) {
      // The hint would repeat the error.
      const cost = part(form, "cost");
      if (cost && name === "max_output_tokens") cost.textContent = "";
      return markField(field, words);
    }
    const place = part(form, "failure");
    if (!place) return;
    place.firstElementChild.textContent = words;
    show(place, true);
    place.scrollIntoView({ block: "nearest" });
  }

  function say(form, words) {
    const place = part(form, "status");
    if (place) place.textContent = words;
  }

  function show(element, isShown) {
    if (element) element.hidden = !isShown;
  }

  async function refusalWords(reply) {
    try {
      const { error } = await reply.json();
      if (error.code === "text_stored") return error.reason;
      if (reply.status === 401) return "You are signed out. Your text is untouched. Sign in again in another tab, then try again.";
      return `${error.reason} Your text is untouched.`;
    } catch {
      return "The request failed. Your text is untouched. Try again in a moment.";
    }
  }

  /** Parses the server-sent events of a response: names, and data as JSON. */
  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      let end;
      while ((end = rest.indexOf("\n\n")) >= 0) {
        const lines = rest.slice(0, end).split("\n");
        rest = rest.slice(end + 2);
        const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
        const data = field("data");
        if (data !== undefined) yield { name: field("event"), data: JSON.parse(data) };
      }
    }
  }
})();
