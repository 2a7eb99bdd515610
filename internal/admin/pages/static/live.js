// Replaces the parts of a page that the server marks as live by what it sends. Without this script the page is whole.
(function () {
  "use strict";
  var from = document.body.dataset.events, state = document.getElementById("live-state");
  if (!from || !window.EventSource) { return; }
  var source = null, late = {};
  function say(text) { if (state) { state.textContent = text; } }
  function all(part, what) { return Array.prototype.slice.call(part.querySelectorAll(what)); }
  // What has the focus is not taken away: its part waits until the focus leaves it.
  function put(part) {
    var old = document.getElementById(part.id), now = document.activeElement;
    if (!old) { return; }
    if (now && now !== document.body && old.contains(now)) { late[part.id] = part; return; }
    delete late[part.id];
    var opened = all(old, "details").map(function (d) { return d.open; });
    var places = all(old, ".scroll, pre").map(function (e) { return [e.scrollLeft, e.scrollTop]; });
    old.innerHTML = part.html;
    all(old, "details").forEach(function (d, i) { d.open = !!opened[i]; });
    all(old, ".scroll, pre").forEach(function (e, i) { if (places[i]) { e.scrollLeft = places[i][0]; e.scrollTop = places[i][1]; } });
  }
  document.addEventListener("focusout", function () {
    setTimeout(function () { Object.keys(late).forEach(function (id) { put(late[id]); }); }, 0);
  });
  function open() {
    source = new EventSource(from);
    source.onopen = function () { say("This page changes by itself."); };
    source.onerror = function () { say("The connection is lost; trying again."); };
    source.addEventListener("part", function (event) { put(JSON.parse(event.data)); });
  }
  document.addEventListener("visibilitychange", function () {
    if (document.hidden && source) { source.close(); source = null; } else if (!document.hidden && !source) { open(); }
  });
  if (!document.hidden) { open(); }
}());
