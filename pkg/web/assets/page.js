// Refreshes pages that change while they are open. Everything works without it: the
// footer has a link for a refresh.
(() => {
  "use strict";
  const main = document.querySelector("main[data-live]");
  const again = document.getElementById("again");
  if (!main || !again) return;
  const every = 5000;
  let paused = sessionStorage.getItem("paused") === "1";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "plain";
  const say = () => {
    button.textContent = paused ? "Refresh automatically" : "Pause";
    again.hidden = !paused;
  };
  button.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem("paused", paused ? "1" : "0");
    say();
  });
  again.before(button, " ");
  say();
  // Do not refresh while the visitor uses the page: keep the focus, a selection or a form.
  const busy = () => {
    const at = document.activeElement;
    return paused || document.hidden || (at && at !== main && main.contains(at)) || !getSelection().isCollapsed;
  };
  const wait = () => setTimeout(load, every);
  const load = async () => {
    if (busy()) return wait();
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "manual" });
      if (answer.type === "opaqueredirect") return location.reload();
      if (answer.ok && !busy()) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        main.replaceChildren(...page.querySelector("main").childNodes);
        document.getElementById("made").replaceWith(page.getElementById("made"));
      }
    } catch (e) {
      // The server does not answer: keep the old content with its time.
    }
    wait();
  };
  wait();
})();
