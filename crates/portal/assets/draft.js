// Streams a draft into the letter's editor. Without this script the same button submits the same form, and the reply is a page.
//
// The previous text is kept until the page unloads, and one button restores it. A draft that fails restores it automatically.
"use strict";

(() => {
  /** The texts before each draft of a form, newest last. */
  const formerTexts = new WeakMap();
  /** The AbortController of a form's running draft. */
  const running = new WeakMap();

  const part = (form, name) => form.querySelector(`[data-draft-${name}]`);
  const editor = (form) => form.querySelector('textarea[name="text"]');

  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    const form = event.target;
    if (button?.hasAttribute("data-draft")) {
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

  // Leaving the page closes the connection, which stops the model.
  window.addEventListener("pagehide", () => document.querySelectorAll("form").forEach((form) => running.get(form)?.abort()));

  async function draft(form, button) {
    const text = editor(form);
    const mine = text.value;
    const stop = new AbortController();
    const body = new URLSearchParams(new FormData(form));
    running.set(form, stop);
    clear(form);
    say(form, "Reading context…");
    text.readOnly = true;
    text.setAttribute("aria-busy", "true");
    button.disabled = true;
    show(part(form, "stop"), true);
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
            if (!written) say(form, "Writing draft…");
            written += data.text;
            text.value = written;
            text.scrollTop = text.scrollHeight;
          } else if (name === "finished" || name === "failed") {
            ending = { name, data };
          }
        }
      }
    } catch (error) {
      ending = stop.signal.aborted ? { name: "stopped" } : null;
    }
    running.delete(form);
    text.readOnly = false;
    text.removeAttribute("aria-busy");
    button.disabled = false;
    show(part(form, "stop"), false);
    end(form, { mine, written, ending });
  }

  function end(form, { mine, written, ending }) {
    const text = editor(form);
    const isFinished = ending?.name === "finished";
    const isStopped = ending?.name === "stopped";
    if (isFinished || (isStopped && written)) {
      text.value = written;
      remember(form, mine);
    } else {
      text.value = mine;
      // The partial draft can still be restored with one click.
      if (written) remember(form, written);
    }
    // Notifies the guard against unsaved changes (portal.js).
    text.dispatchEvent(new Event("input", { bubbles: true }));
    if (isFinished) {
      receipt(form, ending.data.words);
      say(form, `Draft ready. Cost: ${ending.data.words.cost}.`);
      const button = part(form, "panel")?.querySelector("[data-draft]");
      if (button) button.textContent = "Draft again";
    } else if (isStopped) {
      say(form, written ? "Stopped. The partial draft is in the editor and is billed." : "Stopped. Your text is untouched.");
    } else {
      say(form, "");
      const words =
        ending?.data?.words ?? "The connection was lost. Your text is untouched. The partial draft may be billed. Try again.";
      fail(form, words);
    }
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
  }

  /** Each click restores the previous text. The current one goes to the end of the rotation. */
  function putBack(form) {
    const text = editor(form);
    const texts = formerTexts.get(form) ?? [];
    const former = texts.pop();
    if (former === undefined) return;
    if (text.value.trim()) texts.unshift(text.value);
    formerTexts.set(form, texts);
    text.value = former;
    text.dispatchEvent(new Event("input", { bubbles: true }));
    say(form, "Your text is back in the editor.");
    offerBack(form);
    text.focus();
  }

  function clear(form) {
    show(part(form, "failure"), false);
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

  function fail(form, words) {
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
    if (reply.status === 401) return "You are signed out. Copy your text, sign in again and paste it.";
    try {
      const { error } = await reply.json();
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
