// A report that is looked at: it follows its runs, and the text that others save.
import { isHeld, post, root, showError } from "./board.js";
import { onLook } from "./follow.js";
import { followPanels, showPanels } from "./report_panels.js";

const { id, version, number } = document.getElementById("report-head").dataset;
const article = document.querySelector("article.report");
const dialog = document.getElementById("remove-dialog");

let isOld = false;

showPanels(article);
onLook((page) => {
  const fresh = page?.getElementById("report-head")?.dataset;
  isOld ||= Boolean(fresh) && fresh.version !== version && number === version; // somebody saved another text
  const numOf = (place) => place.querySelectorAll("article.report figure").length;
  isOld ||= Boolean(page) && numOf(page) !== numOf(document); // a block can be drawn now, or no longer
  if (isOld && !dialog?.open && !isHeld(article)) location.reload();
  return followPanels(article, page);
});

async function change(path, pairs, place) {
  try {
    location.assign((await post(`${root}/reports/${path}`, [["id", id], ["version", version], ...pairs])).url);
  } catch (error) {
    showError(place, error);
  }
}

document.getElementById("restore")?.addEventListener("click", () => change("restore", [["number", number]], document.getElementById("report-problem")));
document.getElementById("remove")?.addEventListener("click", () => dialog.showModal());
document.getElementById("remove-now")?.addEventListener("click", () => change("remove", [], dialog.querySelector(".problem")));
