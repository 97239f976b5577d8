// Adds a copy button to each example of /docs, and the address of this server to the first. The page is complete without it.
"use strict";

for (const origin of document.querySelectorAll("[data-origin]")) {
  origin.textContent = location.origin;
}

if (navigator.clipboard) {
  const status = document.createElement("p");
  status.className = "visually-hidden";
  status.setAttribute("role", "status");
  document.body.append(status);

  for (const sample of document.querySelectorAll(".example > .sample")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      let outcome = "Copied";
      try {
        await navigator.clipboard.writeText(sample.textContent);
      } catch {
        // The browser denied it; select the text, so that one key copies it.
        getSelection().selectAllChildren(sample);
        outcome = "Press Ctrl+C";
      }
      button.textContent = outcome;
      status.textContent = outcome;
      setTimeout(() => {
        button.textContent = "Copy";
        status.textContent = "";
      }, 2000);
    });
    sample.before(button);
  }
}
