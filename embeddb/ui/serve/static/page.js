"use strict";
// Asking about a file that was dropped or chosen: its bytes are the body of one request.
(() => {
  for (const form of document.querySelectorAll("form[data-submit=change]")) {
    form.addEventListener("change", () => form.requestSubmit());
  }
  const form = document.getElementById("ask");
  if (!form) return;
  const input = form.querySelector("input[type=file]");
  const drop = form.querySelector(".drop");
  const text = form.querySelector(".drop-text");
  const state = form.querySelector(".ask-state");
  const button = form.querySelector(".main-button");
  let file = null;

  function say(words, bad = false) {
    state.textContent = words;
    state.classList.toggle("bad", bad);
  }

  function choose(found) {
    if (!found) return;
    file = found;
    text.textContent = found.name;
    if (found.size > Number(form.dataset.most)) {
      file = null;
      say(`${found.name} is larger than this server takes (start it with --max-upload)`, true);
    } else {
      say("");
    }
  }

  async function send() {
    const asked = new URLSearchParams({
      platform: form.elements.platform.value,
      op: form.elements.op.value,
      name: file.name,
    });
    for (let tries = 0; tries < 5; tries++) {
      const reply = await fetch(`${document.body.dataset.root}/ask?${asked}`, { method: "POST", body: file });
      if (reply.status !== 503) return reply;
      say("others are asking too; waiting for a turn");
      const wait = Number(reply.headers.get("Retry-After")) || 2;
      await new Promise((done) => setTimeout(done, 1000 * wait));
    }
    throw new Error("the server is busy; try again later");
  }

  async function ask() {
    if (!file) {
      say("choose a matrix file first", true);
      input.focus();
      return;
    }
    button.disabled = true;
    say(`reading ${file.name} …`);
    try {
      const reply = await send();
      const found = await reply.json();
      if (reply.ok) {
        location.assign(found.url);
        return;
      }
      say(found.hint ? `${found.error} (${found.hint})` : found.error, true);
    } catch (error) {
      say(error instanceof TypeError ? "the server does not answer; is it still running?" : error.message, true);
    }
    button.disabled = false;
  }

  input.addEventListener("change", () => choose(input.files[0]));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  for (const name of ["dragenter", "dragover"]) {
    drop.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.add("over-it");
    });
  }
  for (const name of ["dragleave", "drop"]) {
    drop.addEventListener(name, () => drop.classList.remove("over-it"));
  }
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    choose(event.dataTransfer.files[0]);
    if (file) ask();
  });
  // A file that misses the box would otherwise replace the page.
  for (const name of ["dragover", "drop"]) window.addEventListener(name, (e) => e.preventDefault());
})();
