// The curves of a run: they follow the run.
import { localise } from "./board.js";
import { onLook } from "./follow.js";
import { followPanels, renewPanels } from "./panels.js";
import { sieve } from "./tables.js";

onLook(async (page) => {
  if (page) {
    localise(page);
    await renewPanels(page.getElementById("panels"));
    sieve(document.querySelector("#settings .sieve"));
  }
  return followPanels();
});
