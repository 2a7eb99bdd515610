// Replaces the parts of a page that the server marks as live by what it sends. Without this script the page is whole.
(function () {
  "use strict";
  var from = document.body.dataset.events, state = document.getElementById("live-state");
  if (!from || !window.EventSource) { return; }
  var source = null;
  function say(text) { if (state) { state.textContent = text; } }
  function open() {
    source = new EventSource(from);
    source.onopen = function () { say("This page changes by itself."); };
    source.onerror = function () { say("The connection is lost; trying again."); };
    source.addEventListener("part", function (event) {
      var part = JSON.parse(event.data), old = document.getElementById(part.id), now = document.activeElement;
      if (!old || (now && now !== document.body && old.contains(now))) { return; }
      var opened = Array.prototype.map.call(old.querySelectorAll("details"), function (d) { return d.open; });
      old.innerHTML = part.html;
      old.querySelectorAll("details").forEach(function (d, i) { d.open = !!opened[i]; });
    });
  }
  document.addEventListener("visibilitychange", function () {
    if (document.hidden && source) { source.close(); source = null; } else if (!document.hidden && !source) { open(); }
  });
  if (!document.hidden) { open(); }
}());
