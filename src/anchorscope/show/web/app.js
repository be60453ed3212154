// A click on a token tells the server which; the token that had the focus gets it back.
let last = null;
element.addEventListener("click", (event) => {
  const token = event.target.closest("[data-token]");
  if (!token || !element.contains(token)) return;
  last = token.dataset.token;
  token.classList.toggle("cut");
  token.closest(".panel")?.classList.add("busy");
  trigger("select", { token: Number(last) });
});
new MutationObserver(() => {
  if (last === null || (document.activeElement && document.activeElement !== document.body)) return;
  const token = element.querySelector(`[data-token="${last}"]`);
  if (token) token.focus({ preventScroll: true });
}).observe(element, { childList: true, subtree: true });
