// Light or dark: what the system says, until the reader says otherwise.

const KEPT = "redraft.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };

/** Make a button that goes round the three. */
export function themed(button) {
  let theme = kept();
  const wear = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" }[theme];
    button.setAttribute("aria-label", `Colours: ${theme}`);
  };
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    try {
      localStorage.setItem(KEPT, theme);
    } catch {
      // A browser that keeps nothing still changes its colours.
    }
    wear();
  });
  wear();
}

function kept() {
  try {
    const found = localStorage.getItem(KEPT);
    return found in NEXT ? found : "auto";
  } catch {
    return "auto";
  }
}
