// Stores what is typed into a record's form every few seconds, so that it comes back after a crash or an ended session. Without
// this script, the text of a form that arrives after the session ended is stored as well.
"use strict";

(() => {
  const INTERVAL_MS = 3_000;
  /** Browsers send no more than this while a page closes. */
  const MAX_KEEPALIVE_BYTES = 60_000;

  const start = (form) => {
    const status = form.querySelector("[data-autosave-status]");
    const typed = () => new URLSearchParams(new FormData(form)).toString();
    // A form that is shown again with problems is stored nowhere; a restored one is.
    const isStored = !("unsaved" in form.dataset) || Boolean(document.querySelector("[data-restored]"));
    let stored = isStored ? typed() : null;
    let isLeaving = false;
    let timer = 0;
    let sending = null;

    const say = (text, isProblem) => {
      // What is repeated is not announced again.
      if (!status || status.textContent === text) return;
      if (isProblem) status.setAttribute("role", "alert");
      else status.removeAttribute("role");
      status.textContent = text;
    };

    // The same form in another tab replaces what is stored of this one.
    const tabs = new BroadcastChannel("unsaved");
    const name = `${form.action} ${form.elements.kind.value}`;
    tabs.addEventListener("message", ({ data }) => {
      if (data === name) say("This form is open in another tab too. Only the text that was typed last is stored.", true);
    });

    const save = async () => {
      clearTimeout(timer);
      timer = 0;
      // A running draft replaces the text for the moment (draft.js).
      const isBusy = sending || form.querySelector('textarea[name="text"]')?.readOnly;
      if (isLeaving || !form.isConnected) return;
      if (isBusy) return later();
      const body = typed();
      if (body === stored) return;
      sending = new AbortController();
      try {
        const reply = await fetch(form.dataset.autosave, {
          method: "POST",
          body,
          headers: { accept: "application/json", "content-type": "application/x-www-form-urlencoded" },
          credentials: "same-origin",
          redirect: "error",
          keepalive: body.length < MAX_KEEPALIVE_BYTES,
          signal: sending.signal,
        });
        if (reply.ok) {
          stored = body;
          tabs.postMessage(name);
          const time = new Date().toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
          say(`Not saved yet. A copy of your text was stored at ${time}.`);
        } else if (reply.status === 429 || reply.status >= 500) {
          throw new Error(reply.statusText);
        } else {
          const { code, reason } = (await reply.json()).error;
          say(code === "not_signed_in" ? "You are signed out. Sign in again in another tab, then save here." : reason, true);
        }
      } catch {
        // The server may be back in a moment.
        if (!isLeaving) later();
        if (!isLeaving) say("Your text could not be stored. Save it soon.", true);
      }
      sending = null;
      if (typed() !== body) later();
    };

    const later = () => {
      if (!timer) timer = setTimeout(save, INTERVAL_MS);
    };

    form.addEventListener("input", () => {
      // Someone who goes on typing has stopped the page from loading.
      isLeaving = false;
      later();
    });
    if (stored === null) later();
    document.addEventListener("visibilitychange", () => {
      if (document.hidden && timer) save();
    });
    // Saved or discarded text must not be stored again after it.
    addEventListener("submit", (event) => {
      if (event.defaultPrevented || (event.target !== form && !("discards" in event.target.dataset))) return;
      isLeaving = true;
      clearTimeout(timer);
      timer = 0;
      sending?.abort();
    });
    addEventListener("pageshow", (event) => {
      if (event.persisted) isLeaving = false;
    });
  };

  document.querySelectorAll("form[data-autosave]").forEach(start);
})();
