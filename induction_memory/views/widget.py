"""The page as an anywidget: the page in a frame, with a `step` that the kernel and the user can both set.

Frame and notebook exchange messages: the page reports its step, the notebook requests one. Without a running kernel,
the page's HTML (`Report._repr_html_`) is shown instead.
"""

from typing import TYPE_CHECKING, Any

from induction_memory.errors import InputError

if TYPE_CHECKING:
    from induction_memory.views.run_page import Report

SCRIPT = """
function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.style.width = "100%";
  frame.style.height = model.get("height") + "px";
  frame.style.border = "0";
  frame.title = "induction_memory report";
  frame.srcdoc = model.get("page");
  const ask = () => frame.contentWindow?.postMessage(
    { kind: "induction-memory set step", step: model.get("step") }, "*");
  const hear = (event) => {
    if (event.source !== frame.contentWindow) return;
    if (event.data?.kind === "induction-memory ready") ask();
    if (event.data?.kind !== "induction-memory step" || event.data.step === model.get("step")) return;
    model.set("step", event.data.step);
    model.save_changes();
  };
  window.addEventListener("message", hear);
  model.on("change:step", ask);
  el.append(frame);
  return () => window.removeEventListener("message", hear);
}
export default { render };
"""


def widget(report: "Report", step: int | None = None, height: int = 900) -> Any:
    """A widget whose `step` is the step of the first run, by default its last."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise InputError("widget: expected the package anywidget (pip install anywidget), got none") from None

    class ReportWidget(anywidget.AnyWidget):
        _esm = SCRIPT
        page = traitlets.Unicode().tag(sync=True)
        step = traitlets.Int().tag(sync=True)
        height = traitlets.Int().tag(sync=True)

    steps = report.pack.meta["runs"][0]["steps"]
    return ReportWidget(page=report.html(), step=steps[-1] if step is None else step, height=height)
