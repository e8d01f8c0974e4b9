"""The site: Sphinx with MyST, mathematics rendered while it is built, nothing fetched. `make docs` builds it."""

import re
import shutil
import sys
from pathlib import Path

import induction_memory

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "induction_memory"
copyright = "the authors of induction_memory, MIT licence"
version = release = induction_memory.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "mathematics",
    "docstrings",
    "api_pages",
]
halves = [p for p in (Path(__file__).parent / "notebooks").glob("*.md") if p.with_suffix(".ipynb").exists()]
exclude_patterns = ["_build", "pages", *(f"notebooks/{p.name}" for p in halves)]

html_theme = "furo"
html_title = f"induction_memory {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
pygments_dark_style = "github-dark"
highlight_language = "bash"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5fa5", "color-brand-content": "#0b5fa5"},
    "dark_css_variables": {"color-brand-primary": "#7cc4ff", "color-brand-content": "#7cc4ff"},
    "source_edit_link": None,
}

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath", "fieldlist", "html_image", "substitution"]
myst_heading_anchors = 4
myst_url_schemes = {"http": None, "https": None, "mailto": None, "site": {"url": "{{path}}"}}
myst_fence_as_directive = []
nb_execution_mode = "off"  # the notebooks are stored with their outputs, which tests compare with fresh ones
nb_render_markdown_format = "myst"
suppress_warnings = ["myst.domains"]
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"

katex_prerender = True
katex_css_path = "katex/katex.min.css"

autodoc_inherit_docstrings = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_use_type_comments = False
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88


def follow_links(app, docname, source):
    """Links out of docs/: what is built beside the site is an address there, sources are shown by viewcode."""
    text = source[0]
    text = re.sub(r"\]\((?:\.\./)?(pages/[\w-]+\.html)\)", lambda m: f"](site:{_up(docname)}{m[1]})", text)
    source[0] = text


def _up(docname):
    return "../" * docname.count("/")


def copy_pages(app, exception):
    """The pages of runs, made by analyses/pages.py, stand beside the site as they are."""
    pages = Path(app.srcdir) / "pages"
    if exception is None and pages.exists():
        shutil.copytree(pages, Path(app.outdir) / "pages", dirs_exist_ok=True)


def setup(app):
    app.connect("build-finished", copy_pages)
    app.connect("source-read", follow_links)
