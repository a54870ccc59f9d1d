// The browser of examples. Text of the corpus reaches the page as textContent, never as HTML.
"use strict";
const card = JSON.parse(document.getElementById("samples").textContent);
const byId = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en");
let current = 0;
let matches = null; // numbers of the samples that hold what is searched for; null: no search

function element(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content); // strings become text nodes
  return made;
}

// Text with what is searched for in <mark>.
function marked(tag, className, text) {
  const made = element(tag, className);
  const wanted = matches ? byId("search").value.trim().toLowerCase() : "";
  const lower = text.toLowerCase();
  let from = 0;
  // Lower case may be longer than the text (İ): then no place in it is known.
  if (wanted && lower.length === text.length) {
    for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
      made.append(text.slice(from, at), element("mark", "", text.slice(at, at + wanted.length)));
      from = at + wanted.length;
    }
  }
  made.append(text.slice(from));
  made.dir = "auto";
  return made;
}

function documentOf(sentence) {
  return card.documents[sentence.document];
}

// In short: the title, or the name of the file if there is none.
function showDocument(place, isShort) {
  const title = place.title ? [marked("bdi", "", place.title)] : [];
  if (isShort && place.title) return title;
  const name = place.file.split("/").pop();
  const file = element("bdi", "", isShort ? name : `${name}, ${place.place}`);
  file.title = place.file;
  return title.length ? [...title, " · ", file] : [file];
}

function showSentence(id, similarity, length, isChosen, isQuery, isSameDocument) {
  const sentence = card.sentences[id];
  const made = element("p", isChosen ? "sentence chosen" : "sentence");
  made.append(marked("span", "words", sentence.text));
  const from = element("span", "from");
  if (isQuery) from.append(element("span", "score", "query"), " · ");
  else if (similarity !== null) from.append(element("span", "score", similarity.toFixed(3)), " · ");
  from.append(...showDocument(documentOf(sentence), isSameDocument), " · ");
  from.append(`sentence ${count.format(sentence.position)} · #${id} · ${count.format(length)} tokens`);
  made.append(from);
  return made;
}

function tokens(names) {
  return names.filter((name) => name).map((name) => element("span", "token", name));
}

function showGroup(arm, group, chosen) {
  const hasQuery = card.with_query.includes(arm.strategy);
  const sentences = group.ids.map((id, i) =>
    showSentence(id, group.similarities[i], group.lengths[i], id === chosen, hasQuery && i === 0,
      i > 0 && card.sentences[id].document === card.sentences[group.ids[i - 1]].document));
  if (arm.layout === "in_batch") {
    return sentences.map((sentence) => element("div", "context",
      ...tokens([card.marks.begin]), sentence, ...tokens([card.marks.end])));
  }
  const context = element("div", "context", ...tokens(group.before));
  sentences.forEach((sentence, i) => context.append(sentence, ...tokens(group.after[i])));
  return [context];
}

function describe(arm, group) {
  const number = group.ids.length;
  const words = number === 1 ? "1 sentence" : `${count.format(number)} sentences`;
  if (arm.layout === "in_batch") return `${words}, each an example of its own, all in one batch`;
  return `${words}, one context of ${count.format(group.tokens)} tokens`;
}

function showArm(arm, sample) {
  const head = element("div", "head", element("h3", "", arm.name));
  const made = element("article", "arm", head);
  made.setAttribute("aria-label", arm.name);
  made.tabIndex = 0; // it scrolls where the group is long
  const group = sample.groups[arm.strategy];
  if (!group) {
    head.append(element("p", "note", "This sentence has no group in this arm."));
    return made;
  }
  let note = `${describe(arm, group)} · group ${count.format(group.group)}`;
  if (group.elsewhere) note += ". Any group: this arm does not hold the sentence of the others";
  if (!group.kept) note += ". Left out of the records by the gain filter";
  head.append(element("p", "note", note));
  made.append(...showGroup(arm, group, sample.sentence));
  return made;
}

function show(number) {
  if (!card.samples.length) return;
  current = Math.min(Math.max(number, 0), card.samples.length - 1);
  byId("number").value = current + 1;
  const sample = card.samples[current];
  const shown = card.arms.filter((arm) => byId(`show-${arm.name}`).checked);
  byId("arms-of-example").replaceChildren(...shown.map((arm) => showArm(arm, sample)));
  for (const chosen of document.querySelectorAll(".sentence.chosen")) { // a long group scrolls
    const box = chosen.closest(".arm");
    box.scrollTop = chosen.offsetTop - 120;
  }
  byId("status").textContent = `Example ${current + 1} of ${card.samples.length}`;
  history.replaceState(null, "", `#sample=${current + 1}`);
}

function textOf(sample) {
  const ids = Object.values(sample.groups).flatMap((group) => group.ids);
  return ids.map((id) => {
    const sentence = card.sentences[id];
    return `${sentence.text}\n${documentOf(sentence).title}`;
  }).join("\n").toLowerCase();
}

function search() {
  const wanted = byId("search").value.trim().toLowerCase();
  const all = card.samples.map((_, number) => number);
  matches = wanted ? all.filter((number) => textOf(card.samples[number]).includes(wanted)) : null;
  byId("found").textContent = matches === null ? ""
    : `in ${count.format(matches.length)} of ${count.format(all.length)} examples`;
  if (matches === null || !matches.length || matches.includes(current)) show(current);
  else show(matches.find((number) => number > current) ?? matches[0]);
}

// With a search, from one example that has it to the next; else one by one. Both go round.
function step(by) {
  const among = matches && matches.length ? matches : card.samples.map((_, number) => number);
  const after = by > 0 ? among.find((number) => number > current)
    : among.findLast((number) => number < current);
  show(after ?? (by > 0 ? among[0] : among[among.length - 1]));
}

function fromAddress() {
  const asked = /^#sample=(\d+)$/.exec(location.hash);
  if (asked) show(Number(asked[1]) - 1);
  return Boolean(asked);
}

byId("previous").addEventListener("click", () => step(-1));
byId("next").addEventListener("click", () => step(1));
byId("number").addEventListener("change", (event) => show(Number(event.target.value) - 1));
byId("search").addEventListener("input", search);
byId("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
});
for (const arm of card.arms) byId(`show-${arm.name}`).addEventListener("change", () => show(current));
byId("browser").addEventListener("keydown", (event) => {
  if (event.target.tagName === "INPUT" && event.target.type !== "checkbox") return;
  if (event.key === "ArrowLeft") step(-1);
  if (event.key === "ArrowRight") step(1);
});
addEventListener("hashchange", fromAddress);
if (!fromAddress()) {
  const address = location.href; // the first example is no reason to leave the top of the page
  show(0);
  history.replaceState(null, "", address);
}
