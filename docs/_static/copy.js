// A button on each block of code copies what can be pasted: no prompts, no output, no comments behind shell commands.

function pasteable(block) {
  const lines = block.querySelector("pre").textContent.replace(/\n+$/, "").split("\n");
  const prompt = /^(\$|>>>|\.\.\.)( |$)/;
  const typed = lines.some((line) => prompt.test(line)) ? lines.filter((line) => prompt.test(line)) : lines;
  const plain = typed.map((line) => line.replace(prompt, ""));
  const shell = block.matches(".highlight-none, .highlight-default, .highlight-console, .highlight-sh, .highlight-bash");
  return (shell ? plain.map((line) => line.replace(/\s+# .*$/, "")) : plain).join("\n") + "\n";
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page that was not fetched over HTTPS
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div[class*=highlight-]")) {
    if (block.matches(".highlight-text, .highlight-output, .sphx-glr-script-out *")) continue;
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      await copy(pasteable(block));
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    block.append(button);
  }
});
