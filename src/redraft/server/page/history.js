// Conversations kept in this browser, so that a reload loses none. They are sent nowhere.

const KEPT = "redraft.history";
const OPEN = "redraft.open";
const MOST = 20; // conversations
const MOST_CHARACTERS = 400_000;

/** What is kept, the newest first: {id, when, mode, turns: [{asked, text}]}. */
export function conversations() {
  try {
    const found = JSON.parse(localStorage.getItem(KEPT) ?? "[]");
    return Array.isArray(found) ? found.filter((one) => Array.isArray(one?.turns) && one.turns.length) : [];
  } catch {
    return [];
  }
}

/** Keep a conversation as it is now; the oldest go where there are too many. */
export function keep(conversation) {
  const all = [conversation, ...conversations().filter(({ id }) => id !== conversation.id)].slice(0, MOST);
  while (all.length && JSON.stringify(all).length > MOST_CHARACTERS) all.pop();
  try {
    localStorage.setItem(KEPT, JSON.stringify(all));
    enter(conversation.id);
  } catch {
    // A browser that keeps nothing, or has no room, still answers.
  }
}

/** Forget all of them. */
export function forgetAll() {
  localStorage.removeItem(KEPT);
  leave();
}

/** The conversation that was open in this tab before a reload, or undefined. */
export function opened() {
  return conversations().find(({ id }) => id === sessionStorage.getItem(OPEN));
}

/** A conversation is open in this tab. */
export function enter(id) {
  sessionStorage.setItem(OPEN, id);
}

/** No conversation is open. */
export function leave() {
  sessionStorage.removeItem(OPEN);
}
