// What to change, with buttons that copy the arguments.

import { $, build, count, element, setText } from "./elements.js";

const TOLD = 2500; // milliseconds for which a button says what it has done

export function showAdvice(advice, speed) {
  const focused = [...$("advice").querySelectorAll("button")].indexOf(document.activeElement);
  build($("advice"), advice.map(({ change, copy }) => [change, copy]), (all) => all.map(item));
  if (focused >= 0 && !$("advice").contains(document.activeElement)) $("advice").querySelectorAll("button")[focused]?.focus();
  [...$("advice").children].forEach((node, i) => showGain(node.querySelector(".gain"), advice[i].gain, speed));
}

// Apart from the rest, which stays as it is while the gain changes.
function showGain(tag, gain, speed) {
  tag.hidden = !gain;
  if (!gain) return;
  const words = `${gain.toFixed(1)}×`;
  if (tag.textContent !== words) tag.textContent = words;
  tag.title = `predicted: ${count(gain * speed)} samples/s instead of ${count(speed)}`;
}

function item([change, copy]) {
  const sentence = element("span", {}, change);
  const own = copy !== change; // else the sentence is all there is
  const code = own ? element("code", {}, copy) : sentence;
  const button = element("button", { type: "button", "aria-label": `Copy ${copy}` }, "Copy");
  button.onclick = () => put(copy, code, button);
  const paste = element("div", { class: "paste" }, ...(own ? [code] : []), button);
  return element("li", {}, element("div", { class: "what" }, sentence, paste), element("span", { class: "gain" }));
}

async function put(words, node, button) {
  let told = "Copied";
  try {
    await navigator.clipboard.writeText(words);
  } catch {
    // Browsers allow it on loopback and with TLS only, and a user may have forbidden it.
    getSelection().selectAllChildren(node);
    told = `Selected: press ${/Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl+"}C`;
  }
  button.textContent = told;
  setText("said", `${told}: ${words}`);
  setTimeout(() => {
    button.textContent = "Copy";
    setText("said", "");
  }, TOLD);
}
