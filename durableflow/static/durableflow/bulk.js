/* Presses "Go on" by itself, once the page is shown. Without scripts a person presses it. */
"use strict";
window.addEventListener("load", () => {
  const form = document.getElementById("df-go-on");
  if (form) {
    form.requestSubmit();
  }
});
