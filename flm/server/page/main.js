/** The page put together: what a person does leads to what the server is asked. */

import { hasKey, postJson, setKey } from "./api.js";
import { ChatView } from "./chat.js";
import { Choices } from "./choices.js";
import { Conversation, Exchange } from "./conversation.js";
import { announce, byId } from "./dom.js";
import { KeptPanel } from "./kept.js";
import { Pictures } from "./pictures.js";

const TRY_AGAIN_MS = 2000;
const UNAUTHORIZED = 401;

const conversation = new Conversation();
const choices = new Choices();
const pictures = new Pictures(() => choices.seesPictures);
const chat = new ChatView(conversation, () => answer());
const kept = new KeptPanel(failed, () => notice(""));
let frame = 0;
let opening = null; // the key that is being asked for

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

/** Deals with what can be dealt with, and says the rest. */
async function failed(error) {
  if (error.status === UNAUTHORIZED) await askForKey();
  else notice(error.fix ? `${error.message} Fix: ${error.fix}.` : error.message);
}

function askForKey() {
  opening ??= new Promise((resolve) => {
    byId("key-wrong").hidden = !hasKey();
    byId("key").value = "";
    byId("key-dialog").showModal();
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      setKey(byId("key").value);
      byId("key-dialog").close();
      opening = null;
      byId("change-key").hidden = false;
      resolve();
    };
  });
  return opening;
}

/** Until there are models to ask. */
async function open() {
  for (;;) {
    try {
      await choices.load();
      notice("");
      return;
    } catch (error) {
      await failed(error);
      if (error.status === UNAUTHORIZED) continue;
      await new Promise((resolve) => setTimeout(resolve, TRY_AGAIN_MS));
    }
  }
}

function draw() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => chat.draw());
  byId("stop").hidden = !conversation.running;
  byId("send").hidden = conversation.running;
}

function send() {
  const text = byId("message").value.trim();
  if (!text || conversation.running) return;
  if (!choices.loaded) {
    notice("No model is there yet; the message is not sent.");
    return;
  }
  conversation.exchanges.push(new Exchange(text, pictures.take()));
  byId("message").value = "";
  grow();
  answer();
  requestAnimationFrame(() => chat.scrollToEnd());
}

async function answer() {
  if (conversation.running) return;
  notice("");
  const answered = conversation.answer(choices, draw);
  draw();
  await answered;
  draw();
  const { error } = conversation.exchanges.at(-1) ?? {};
  if (error?.status === UNAUTHORIZED) {
    await askForKey();
    await answer();
  }
  byId("message").focus();
}

function stop() {
  conversation.stop();
  byId("message").focus();
}

/** As high as what is written, up to what the style allows. */
function grow() {
  const box = byId("message");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function show(what) {
  document.body.dataset.shown = what;
  for (const each of ["chat", "kept"]) {
    byId(`show-${each}`).setAttribute("aria-pressed", String(each === what));
  }
}

async function forget() {
  if (!confirm("Forget all kept prompts, in memory and on disk?")) return;
  try {
    const { cleared } = await postJson("v1/prefix-cache/clear", {});
    announce(`${cleared} snapshots forgotten`);
    kept.lookSoon();
  } catch (error) {
    await failed(error);
  }
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("message").addEventListener("input", grow);
byId("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && conversation.running) stop();
});
byId("stop").addEventListener("click", stop);
byId("new-chat").addEventListener("click", () => {
  conversation.clear();
  chat.draw();
  byId("message").focus();
});
byId("show-chat").addEventListener("click", () => show("chat"));
byId("show-kept").addEventListener("click", () => show("kept"));
byId("forget").addEventListener("click", forget);
byId("change-key").addEventListener("click", async () => {
  setKey(null);
  location.reload();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && choices.loaded) choices.load().catch(() => {}); // it is asked again
});
byId("key-dialog").addEventListener("cancel", (event) => event.preventDefault());
byId("change-key").hidden = !hasKey();

await open();
byId("message").focus();
kept.listen();
