// Wide tables and code scroll by keyboard, and the buttons that copy code have separate names.
function mark() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) box.tabIndex = 0;
  document.querySelectorAll(".md-code__nav").forEach((buttons, i) => (buttons.ariaLabel ||= `Code block ${i + 1}`));
}
new MutationObserver(mark).observe(document.body, { childList: true, subtree: true });
window.addEventListener("load", mark);
