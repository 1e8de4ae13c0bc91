// Work that takes a slow browser longer than new figures take to come.

const waiting = new Map();
let isBusy = false;

// Does what is named soon, once, as it was last asked for. The browser has as much time for everything else as the work
// has taken.
export function soon(name, work) {
  waiting.set(name, work);
  if (!isBusy) setTimeout(next);
  isBusy = true;
}

function next() {
  // The page's texts, which say what the user has chosen, come before plots of what was.
  const name = waiting.has("page") ? "page" : waiting.keys().next().value;
  const work = waiting.get(name);
  waiting.delete(name);
  const began = performance.now();
  try {
    work();
  } finally {
    isBusy = waiting.size > 0;
    if (isBusy) setTimeout(next, performance.now() - began);
  }
}
