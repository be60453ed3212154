// The page that asks a model live. A panel's state is here; the server draws what it is asked for.

const at = (id) => document.getElementById(id);
const hint = at("second").innerHTML; // which the server wrote
const sides = { first: { question: "", about: null, cut: null }, second: { question: "", about: null, cut: null } };

function stepOf(name) {
  const { question, about, cut } = sides[name], checked = (id) => at(id).checked;
  return {
    question, about, cut, dataset: sides.dataset, neutral: checked("neutral"), answer_only: checked("answer_only"),
    // The other subject is on the right already: there is no third one to patch in.
    patch: name === "first" && checked("patch"), subject: at("subject").value,
    window: Number(at("window").value), heads: at("heads").value, mode: document.querySelector("#mode :checked").value,
  };
}

// Asks for a panel; what changes meanwhile is asked for when it is there, so that no click is lost.
async function draw(name) {
  const side = sides[name];
  side.again = true;
  if (side.running || !side.question) return;
  side.running = true;
  while (side.again) {
    side.again = false;
    at(name).firstElementChild.classList.add("busy");
    try {
      const body = JSON.stringify(stepOf(name));
      const reply = await fetch("/step", { method: "POST", headers: { "content-type": "application/json" }, body });
      if (!reply.ok) throw new Error((await reply.json()).error.message);
      await eachLine(reply.body, (line) => show(name, JSON.parse(line)));
    } catch (error) {
      say(name, error.message);
    }
  }
  side.running = false;
}

async function eachLine(stream, take) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    lines.forEach(take);
  }
}

// The token that had the focus gets it back.
function show(name, html) {
  const node = at(name), focused = node.contains(document.activeElement) ? document.activeElement.dataset.token : null;
  node.innerHTML = html; // every text in it was escaped by the server
  if (focused) node.querySelector(`[data-token="${focused}"]`)?.focus({ preventScroll: true });
}

function say(name, text) {
  const line = document.createElement("p");
  line.className = "anchorscope box";
  line.textContent = text;
  at(name).replaceChildren(line);
}

function on(id, event, take) {
  at(id).addEventListener(event, (happened) => {
    if (event === "submit") happened.preventDefault();
    take(happened);
  });
}

const drawBoth = () => ["first", "second"].forEach(draw);

on("asking", "submit", () => {
  const question = at("question").value.trim();
  if (!question) return say("first", "Type a question, or pick one of the run's.");
  sides.dataset = at("dataset").value;
  Object.assign(sides.first, { question, cut: null });
  Object.assign(sides.second, { question: "", cut: null });
  at("second").innerHTML = hint;
  draw("first");
});
on("question", "input", (event) => { // one of the run's was picked
  if (event.inputType === "insertReplacementText") at("asking").requestSubmit();
});
on("comparing", "submit", () => {
  const { question } = sides.first, about = at("subject").value;
  if (!question) return say("second", "Ask a question on the left first.");
  Object.assign(sides.second, { question, about, cut: null });
  drawBoth();
});
on("switches", "submit", drawBoth);
on("switches", "change", drawBoth);
on("again", "click", () => {
  sides.first.cut = sides.second.cut = null;
  drawBoth();
});
on("dataset", "change", () => at("question").setAttribute("list", `questions-${at("dataset").value}`));
at("dataset").dispatchEvent(new Event("change"));
for (const name of ["first", "second"]) {
  on(name, "click", (event) => {
    const token = event.target.closest("[data-token]");
    if (!token) return;
    const cut = sides[name].cut ?? [...at(name).querySelectorAll("[aria-pressed=true]")].map((each) => Number(each.dataset.token));
    const clicked = Number(token.dataset.token);
    sides[name].cut = cut.includes(clicked) ? cut.filter((each) => each !== clicked) : [...cut, clicked];
    draw(name);
  });
}
