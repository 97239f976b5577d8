// Passkeys, buttons that show passwords, and buttons that copy or print codes.
(() => {
  "use strict";

  const fromBase64Url = (text) =>
    Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (char) => char.charCodeAt(0));

  const toBase64Url = (buffer) =>
    btoa(Array.from(new Uint8Array(buffer), (byte) => String.fromCharCode(byte)).join(""))
      .replace(/\+/g, "-")
      .replace(/\//g, "_")
      .replace(/=+$/, "");

  // The server writes bytes as base64url; the browser's functions take and return buffers.
  const decodeOptions = ({ publicKey }) => {
    const decodeIds = (list) => (list || []).map((item) => ({ ...item, id: fromBase64Url(item.id) }));
    const decoded = { ...publicKey, challenge: fromBase64Url(publicKey.challenge) };
    if (publicKey.user) decoded.user = { ...publicKey.user, id: fromBase64Url(publicKey.user.id) };
    if (publicKey.excludeCredentials) decoded.excludeCredentials = decodeIds(publicKey.excludeCredentials);
    if (publicKey.allowCredentials) decoded.allowCredentials = decodeIds(publicKey.allowCredentials);
    return { publicKey: decoded };
  };

  const encodeCredential = ({ id, rawId, type, response }) => {
    const encoded = { clientDataJSON: toBase64Url(response.clientDataJSON) };
    if (response.attestationObject) {
      encoded.attestationObject = toBase64Url(response.attestationObject);
    } else {
      encoded.authenticatorData = toBase64Url(response.authenticatorData);
      encoded.signature = toBase64Url(response.signature);
      encoded.userHandle = response.userHandle && response.userHandle.byteLength ? toBase64Url(response.userHandle) : null;
    }
    return JSON.stringify({ id, rawId: toBase64Url(rawId), type, response: encoded, clientExtensionResults: {} });
  };

  const problemOf = (error, isNew) => {
    switch (error.name) {
      case "NotAllowedError":
        return isNew
          ? "No passkey was created. You cancelled, or it took too long. Try again."
          : "No passkey was used. You cancelled, it took too long, or this device has none for this site. Try again, or sign in another way.";
      case "InvalidStateError":
        return "This device already has a passkey for your account.";
      case "NotSupportedError":
      case "ConstraintError":
        return "This device cannot check that it is you with a PIN, fingerprint or face. Set up a screen lock, or use another device.";
      case "SecurityError":
        return "Your browser refuses passkeys at this address. Open this site at its usual address.";
      default:
        return "The passkey did not work: " + error.message + " Try again, or use another way.";
    }
  };

  for (const form of document.querySelectorAll("form[data-passkey]")) {
    const isNew = form.dataset.passkey === "create";
    const problem = form.querySelector("[data-passkey-problem]");
    let isRunning = false;

    const show = (text) => {
      problem.textContent = text;
      problem.hidden = false;
    };

    const run = async (isAutomatic) => {
      if (isRunning) return;
      isRunning = true;
      problem.hidden = true;
      try {
        const options = decodeOptions(JSON.parse(form.dataset.options));
        const credential = await (isNew ? navigator.credentials.create(options) : navigator.credentials.get(options));
        form.querySelector("input[name=credential]").value = encodeCredential(credential);
        form.submit();
      } catch (error) {
        // Some browsers want a click first. The button is there.
        if (!(isAutomatic && error.name === "NotAllowedError")) show(problemOf(error, isNew));
      } finally {
        isRunning = false;
      }
    };

    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!window.PublicKeyCredential) {
        show("This browser does not support passkeys. Use another browser, or another way to sign in.");
        return;
      }
      run(false);
    });
    if (form.dataset.start === "now" && window.PublicKeyCredential) run(true);
  }

  for (const input of document.querySelectorAll("input[type=password]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "button-link password-toggle";
    button.textContent = "Show password";
    button.setAttribute("aria-controls", input.id);
    button.addEventListener("click", () => {
      const isShown = input.type === "text";
      input.type = isShown ? "password" : "text";
      button.textContent = isShown ? "Show password" : "Hide password";
    });
    input.after(button);
    // Browsers offer to save what a password field sends.
    if (input.form) input.form.addEventListener("submit", () => { input.type = "password"; });
  }

  for (const button of document.querySelectorAll("button[data-copy]")) {
    const source = document.getElementById(button.dataset.copy);
    if (!source || !navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const lines = Array.from(source.querySelectorAll("li"), (line) => line.textContent.trim());
      try {
        await navigator.clipboard.writeText(lines.join("\n") + "\n");
        button.textContent = "Copied";
      } catch {
        button.textContent = "Copying failed. Select the codes instead.";
      }
    });
  }

  for (const button of document.querySelectorAll("button[data-print]")) {
    button.hidden = false;
    button.addEventListener("click", () => window.print());
  }
})();
