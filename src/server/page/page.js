// The chat page at /. It uses only the API of its own server. Text from users and models becomes elements and text nodes,
// never HTML, so none of it can run. The server's content security policy (page.cc) enforces both.

const $ = (id) => document.getElementById(id);
const log = $("log"), scroll = $("scroll"), question = $("question"), panel = $("panel"), fields = panel.querySelector("form").elements;

// Appends the children one by one: passing all children of a long answer at once would exceed the limit of arguments.
function fill(element, children) {
  for (const child of children) element.append(child);
  return element;
}

// Creates an element. `children` may contain arrays of children.
function el(tag, properties = {}, ...children) {
  return fill(Object.assign(document.createElement(tag), properties), children.flat());
}
const button = (text, onclick) => el("button", { type: "button", className: "quiet", onclick }, text);

// Reads a stored value, or stores `value` if it is given. Returns null if the browser denies access to its storage.
function kept(store, name, value) {
  try {
    if (value === undefined) return JSON.parse(window[store].getItem("sluice." + name));
    window[store].setItem("sluice." + name, JSON.stringify(value));
  } catch {
    return null;
  }
}

// Markdown. Parsing takes time linear in the length of the text, because a failed search is never repeated.

const kMark = /[`*[]|https?:\/\//g;
const isSpace = (c) => !c || /\s/.test(c);
const isWord = (c) => Boolean(c) && /[\w*]/.test(c);

// Returns a function that finds the first match of `pattern` at or after a position. Its calls take linear time in total if their positions
// never decrease.
function finder(text, pattern) {
  const found = new RegExp(pattern, "g");
  let from = 0, at = -1;
  return (position) => {
    if (at < position && at !== Infinity || position < from) {
      found.lastIndex = from = position;
      at = found.exec(text)?.index ?? Infinity;
    }
    return at;
  };
}

function link(href, ...label) {
  return el("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...label);
}

// Returns a function that parses the inline element at a position. Its result is the element and its end, or null if there is no element.
// Its calls take linear time in total if their positions never decrease.
function inlineParts(text, depth) {
  const strongEnd = finder(text, /(?<=\S)\*\*/), bracket = finder(text, /\]/), hrefEnd = finder(text, /[\s)]/);
  // Maps the start of a run of backticks to the start of the next run of the same length.
  const sameTicks = new Map();
  const last = new Map();
  for (const run of [...text.matchAll(/`+/g)].reverse()) {
    sameTicks.set(run.index, last.get(run[0].length));
    last.set(run[0].length, run.index);
  }
  function code(at) {
    const end = sameTicks.get(at);
    if (end === undefined) return null;
    const ticks = /`+/y;
    ticks.lastIndex = at;
    const { length } = ticks.exec(text)[0];
    return [el("code", {}, text.slice(at + length, end)), end + length];
  }
  function strong(at) {
    if (text[at + 1] !== "*" || isSpace(text[at + 2])) return null;
    const end = strongEnd(at + 3);
    return end === Infinity ? null : [el("strong", {}, inline(text.slice(at + 2, end), depth + 1)), end + 2];
  }
  function em(at) {
    if (isWord(text[at - 1]) || isSpace(text[at + 1])) return null;
    const end = text.indexOf("*", at + 1);
    if (end < at + 2 || isSpace(text[end - 1]) || isWord(text[end + 1])) return null;
    return [el("em", {}, inline(text.slice(at + 1, end), depth + 1)), end + 1];
  }
  function labelled(at) {
    const close = bracket(at + 1);
    if (close === Infinity || close === at + 1 || text[close + 1] !== "(") return null;
    const scheme = ["http://", "https://"].find((s) => text.startsWith(s, close + 2));
    if (!scheme) return null;
    const from = close + 2, end = hrefEnd(from);
    if (text[end] !== ")" || end === from + scheme.length) return null;
    return [link(text.slice(from, end), text.slice(at + 1, close)), end + 1];
  }
  function bare(at, scheme) {
    const rest = /[^\s<>()"'`*]*/y;
    rest.lastIndex = at + scheme.length;
    const { length } = rest.exec(text)[0];
    let end = at + scheme.length + length;
    while (".,;:!?".includes(text[end - 1])) end--;
    return end <= at + scheme.length ? null : [link(text.slice(at, end), text.slice(at, end)), end];
  }
  return (at, mark) => (mark === "`" ? code(at) : mark === "*" ? strong(at) ?? em(at) : mark === "[" ? labelled(at) : bare(at, mark));
}

function inline(text, depth = 0) {
  if (depth >= 4) return [text];
  const out = [], marks = new RegExp(kMark), part = inlineParts(text, depth);
  let at = 0;
  for (let mark; (mark = marks.exec(text));) {
    const found = part(mark.index, mark[0]);
    if (!found) {
      if (mark[0] === "`") while (text[marks.lastIndex] === "`") marks.lastIndex++;
      continue;
    }
    out.push(text.slice(at, mark.index), found[0]);
    at = marks.lastIndex = found[1];
  }
  out.push(text.slice(at));
  return out;
}

async function copy(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // pages without TLS have no clipboard access
    const area = el("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    from.focus();
  }
  const before = from.textContent;
  from.textContent = "Copied";
  setTimeout(() => (from.textContent = before), 1200);
}

function codeBlock(language, code) {
  const take = button("Copy", () => copy(code, take));
  return el("div", { className: "code" }, el("div", {}, el("span", {}, language || "text"), take),
            el("pre", { tabIndex: 0 }, el("code", {}, code)));
}

const kItem = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const kRule = /^ {0,3}([-*_])( *\1){2,} *$/;
const kFence = /^ {0,3}(`{3,}|~{3,}) *([\w+#.-]*)/;
const fenceOf = (line) => {
  const found = kFence.exec(line);
  return found && !line.includes("`", found[0].length) ? found : null;
};
const isDivider = (line) => /^[ |:-]+$/.test(line) && line.includes("-");
const cells = (row) => row.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const startsBlock = (line) => /^(#{1,6} |>)/.test(line) || kItem.test(line) || kRule.test(line) || fenceOf(line) !== null;

// Returns the lines from `at` up to the first that does not satisfy `more`, and the index of that line.
function gather(lines, at, more) {
  let end = at;
  while (end < lines.length && more(lines[end], end)) end++;
  return [lines.slice(at, end), end];
}

function list(lines, at, depth) {
  const [, margin, marker] = kItem.exec(lines[at]);
  const ordered = /\d/.test(marker);
  const made = ordered ? el("ol", { start: parseInt(marker) }) : el("ul");
  while (at < lines.length) {
    const item = kItem.exec(lines[at]);
    if (!item || item[1].length > margin.length + 1 || item[1].length < margin.length || /\d/.test(item[2]) !== ordered) break;
    const within = (line) => /^\s*$/.test(line) || line.search(/\S/) > margin.length;
    const [rest, end] = gather(lines, at + 1, (line, i) => within(line) && !(line.trim() === "" && !within(lines[i + 1] ?? "x")));
    const indent = rest.reduce((least, line) => (line.trim() ? Math.min(least, line.search(/\S/)) : least), item[0].length);
    const parts = blocks([lines[at].slice(item[0].length), ...rest.map((line) => line.slice(indent))], depth + 1);
    made.append(el("li", {}, parts[0]?.tagName === "P" ? [...parts[0].childNodes, ...parts.slice(1)] : parts));
    at = gather(lines, end, (line) => !line.trim())[1];
  }
  return [made, at];
}

function table(lines, at) {
  const [rows, end] = gather(lines, at + 2, (line) => line.includes("|"));
  const row = (tag) => (line) => el("tr", {}, cells(line).map((cell) => el(tag, {}, inline(cell))));
  const body = el("tbody", {}, rows.map(row("td")));
  return [el("div", { className: "table" }, el("table", {}, el("thead", {}, row("th")(lines[at])), body)), end];
}

// Parses the block that begins at the non-empty line `at`. Returns its element and the index of the first line after the block.
function block(lines, at, depth) {
  const line = lines[at];
  const fence = fenceOf(line);
  if (fence) {
    const [code, end] = gather(lines, at + 1, (l) => !(l.trim().startsWith(fence[1]) && !l.trim().replaceAll(fence[1][0], "")));
    return [codeBlock(fence[2], code.join("\n")), end + 1];
  }
  const heading = /^(#{1,6}) +/.exec(line);
  if (heading) {
    let end = line.length;
    while (end > heading[0].length && line[end - 1] === "#") end--;
    return [el("h" + Math.min(heading[1].length + 1, 4), {}, inline(line.slice(heading[0].length, end))), at + 1];
  }
  if (kRule.test(line)) return [el("hr"), at + 1];
  if (line.startsWith(">") && depth < 8) {
    const [quoted, end] = gather(lines, at, (l) => l.startsWith(">"));
    return [el("blockquote", {}, blocks(quoted.map((l) => l.replace(/^> ?/, "")), depth + 1)), end];
  }
  if (kItem.test(line) && depth < 8) return list(lines, at, depth);
  if (line.includes("|") && isDivider(lines[at + 1] ?? "")) return table(lines, at);
  const [text, end] = gather(lines, at, (l, i) => i === at || (l.trim() && !startsBlock(l)));
  const paragraph = el("p");
  text.forEach((l, i) => fill(paragraph, [...(i ? [el("br")] : []), ...inline(l.trim())]));
  return [paragraph, end];
}

function blocks(lines, depth = 0) {
  const out = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const [made, end] = block(lines, at, depth);
    out.push(made);
    at = end;
  }
  return out;
}

// The conversation

let turns = [];  // {role, content}; answer() adds more members to answers
const articles = new WeakMap();  // by turn
let running = null;  // the current answer: its turn and the AbortController of its request
let editing = null;  // index of the turn that the next message replaces, along with all later turns
let model = { id: "", max_model_len: 0 };

const kSettings = ["system", "effort", "temperature", "max_tokens", "more"];
const settings = { ...Object.fromEntries(kSettings.map((name) => [name, ""])), ...kept("localStorage", "settings") };
let key = kept("sessionStorage", "key") ?? "";

function say(message) {
  $("notice").hidden = !message;
  $("notice").textContent = message;
}

async function call(path, body, signal) {
  const headers = key ? { Authorization: "Bearer " + key } : {};
  if (body) headers["Content-Type"] = "application/json";
  const method = body ? "POST" : "GET";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("The server does not respond. Is it still running?");
  }
  if (response.ok) return response;
  if (response.status === 401) wantKey();
  const found = await response.json().catch(() => null);
  throw new Error(found?.error?.message ?? `The server responded with status ${response.status}.`);
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events)
      if (event.startsWith("data: ") && event !== "data: [DONE]") yield JSON.parse(event.slice(6));
  }
}

function requestBody(history) {
  const number = (name) => (settings[name] === "" ? {} : { [name]: Number(settings[name]) });
  const said = history.filter((t) => t.content).map(({ role, content }) => ({ role, content }));
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  return {
    ...(model.id ? { model: model.id } : {}), messages: [...system, ...said], stream: true, stream_options: { include_usage: true },
    ...number("temperature"), ...number("max_tokens"),
    ...(settings.effort ? { reasoning_effort: settings.effort } : {}), ...(settings.more ? JSON.parse(settings.more) : {}),
  };
}

function take(turn, event, seconds) {
  if (event.error) throw new Error(event.error.message);
  if (event.usage) turn.usage = event.usage;
  const choice = event.choices?.[0];
  if (!choice) return;
  const { reasoning, content } = choice.delta;
  if (reasoning || content) {
    turn.first ??= seconds;
    turn.last = seconds;
    turn.pieces = (turn.pieces ?? 0) + 1;
  }
  if (reasoning) turn.reasoning += reasoning;
  if (content && !turn.content) turn.thought = seconds - turn.first;
  if (content) turn.content += content;
  if (choice.finish_reason) turn.finish = choice.finish_reason;
}

async function answer() {
  const body = requestBody(turns);
  const turn = { role: "assistant", content: "", reasoning: "" };
  turns.push(turn);
  const control = new AbortController();
  const run = running = { turn, control };
  const start = performance.now();
  let frame = 0;
  render();
  question.focus();
  scroll.scrollTop = scroll.scrollHeight;
  try {
    for await (const event of eventsOf(await call("v1/chat/completions", body, control.signal))) {
      take(turn, event, (performance.now() - start) / 1000);
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        update(turn);
      });
    }
    if (!turn.finish) throw new Error("The answer is incomplete: the server closed the connection.");
  } catch (error) {
    if (error.name === "AbortError") turn.finish = "stop button";
    else turn.error = error.message;
  }
  cancelAnimationFrame(frame);
  if (running === run) running = null;
  render();
  kept("sessionStorage", "turns", turns);
}

function stop() {
  running?.control.abort();
  question.focus();
}

// Statistics of an answer. Until the server reports the usage, the number of received pieces approximates the number of tokens.
function facts(turn) {
  const out = [];
  const tokens = turn.usage?.completion_tokens ?? turn.pieces;
  if (tokens) out.push(`${turn.usage ? "" : "about "}${tokens} tokens`);
  if (tokens > 1 && turn.last > turn.first) {
    const rate = (tokens - 1) / (turn.last - turn.first);
    out.push(`${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s`);
  }
  if (turn.usage && model.max_model_len) out.push(`context ${turn.usage.total_tokens} of ${model.max_model_len}`);
  if (turn.finish === "length") out.push("cut off at the token limit");
  if (turn.finish === "stop button") out.push("stopped");
  return out.join(" · ");
}

function articleOf(turn) {
  if (articles.has(turn)) return articles.get(turn);
  const made = el("article");
  if (turn.role === "user") {
    const edit = button("Edit", () => beginEdit(turns.indexOf(turn)));
    made.append(el("div", { className: "text" }, turn.content), el("div", { className: "tools" }, edit));
  } else {
    const take = button("Copy", () => copy(turn.content, take));
    const thoughts = el("details", { open: !turn.finish }, el("summary"), el("div", { className: "thought" }));
    const tools = el("div", { className: "tools" }, el("span", { className: "faint" }), take, button("Try again", again));
    made.append(thoughts, el("div", { className: "md" }), el("p", { className: "error", role: "alert" }), tools);
  }
  articles.set(turn, made);
  return made;
}

function update(turn) {
  const last = turns.indexOf(turn) >= turns.length - 2, busy = running?.turn === turn;
  const article = articleOf(turn);
  article.className = turn.role + (last ? " last" : "") + (busy ? " busy" : "");
  if (turn.role === "user") return;
  const pinned = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
  const [thoughts, text, error, tools] = article.children;
  thoughts.hidden = !turn.reasoning;
  if (turn.content && !thoughts.folded) thoughts.open = !(thoughts.folded = true);
  const seconds = turn.thought === undefined ? "" : ` · ${turn.thought.toFixed(1)} s`;
  thoughts.firstChild.textContent = busy && !turn.content ? "Reasoning …" : "Reasoning" + seconds;
  thoughts.lastChild.textContent = turn.reasoning.trim();
  text.replaceChildren();
  fill(text, blocks(turn.content.split("\n")));
  error.textContent = turn.error;
  error.hidden = !turn.error;
  const [state, take, retry] = tools.children;
  state.textContent = busy && !turn.pieces ? "Waiting" : facts(turn);
  take.hidden = busy || !turn.content;
  retry.hidden = running || !last;
  if (pinned) scroll.scrollTop = scroll.scrollHeight;
}

// Updates the page. Existing elements stay in place, because they may be focused, selected or unfolded.
function render() {
  turns.map(articleOf).forEach((article, i) => log.children[i] === article || log.insertBefore(article, log.children[i] ?? null));
  while (log.children.length > turns.length) log.lastChild.remove();
  turns.forEach(update);
  log.ariaBusy = String(Boolean(running));
  $("empty").hidden = turns.length > 0;
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
}

function send() {
  const text = question.value.trim();
  if (!text || running) return;
  say("");
  if (editing !== null) turns.length = editing;
  editing = null;
  setQuestion("");
  turns.push({ role: "user", content: text });
  answer();
}

function again() {
  if (running) return;
  turns.pop();
  answer();
}

function setQuestion(text) {
  question.value = text;
  question.style.height = "auto";
  question.style.height = question.scrollHeight + "px";
  $("send").disabled = !text.trim();
}

function beginEdit(index) {
  if (running) stop();
  editing = index;
  setQuestion(turns[index].content);
  say("Sending replaces this message and everything after it. Esc cancels.");
  question.focus();
}

function endEdit() {
  editing = null;
  setQuestion("");
  say("");
}

function startOver() {
  running?.control.abort();
  turns = [];
  kept("sessionStorage", "turns", turns);
  endEdit();
  render();
  question.focus();
}

// Settings

function openPanel() {
  for (const name of kSettings) fields[name].value = settings[name];
  fields.key.value = key;
  fields.more.setCustomValidity("");
  if (!panel.open) panel.showModal();
}

function wantKey() {
  say("This server requires an API key. Enter it in the settings.");
  openPanel();
  fields.key.focus();
}

fields.more.oninput = () => {
  let wrong = "";
  try {
    const read = JSON.parse(fields.more.value || "{}");
    if (Array.isArray(read) || typeof read !== "object" || !read) wrong = 'Enter a JSON object such as {"seed": 7}';
  } catch (error) {
    wrong = error.message;
  }
  fields.more.setCustomValidity(wrong);
};

panel.onclose = () => {
  const how = panel.returnValue;
  panel.returnValue = "";
  question.focus();
  if (how !== "done" && how !== "reset") return;
  for (const name of kSettings) settings[name] = how === "reset" ? "" : fields[name].value;
  kept("localStorage", "settings", settings);
  if (how === "done") key = fields.key.value;
  kept("sessionStorage", "key", key);
  say("");
  findModel();
};

async function findModel() {
  try {
    const found = await (await call("v1/models")).json();
    model = found.data[0];
    $("model").textContent = $("model").title = model.id;
    $("about").textContent = `${model.id} · ${model.max_model_len} tokens of context · conversations stay on this server`;
    document.title = model.id + " · Sluice";
  } catch (error) {
    if (!panel.open) say(error.message);
  }
}

function dark() {
  return (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}
$("theme").onclick = () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  kept("localStorage", "theme", document.documentElement.dataset.theme);
};

// Keys and buttons

$("composer").onsubmit = (event) => {
  event.preventDefault();
  send();
};
$("stop").onclick = stop;
$("new").onclick = startOver;
$("settings").onclick = openPanel;
question.oninput = () => setQuestion(question.value);
question.onkeydown = (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    send();
  }
};
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || panel.open) return;
  if (running) stop();
  else if (editing !== null) endEdit();
});

const kExamples = ["What is 417 + 268?", "Sort these numbers: 31, 7, 112, 56.", "How many times does r occur in strawberry?"];
$("examples").append(...kExamples.map((text) => el("button", { type: "button", onclick: () => (setQuestion(text), send()) }, text)));
const theme = kept("localStorage", "theme");
if (theme) document.documentElement.dataset.theme = theme;
turns = kept("sessionStorage", "turns") ?? [];
setQuestion("");
render();
scroll.scrollTop = scroll.scrollHeight;
findModel();
