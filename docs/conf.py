"""The documentation site: `make site` builds it from the pages of docs/, which GitHub shows as well."""

import re

from sphinx.application import Sphinx
from sphinx.domains.python._object import PyObject
from sphinx.util.inspect import TypeAliasForwardRef

import repopt

project = "repopt"
author = "The repopt developers"
copyright = "2026, the repopt developers"
version = release = repopt.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["build"]
highlight_language = "none"  # of a block that names none
html_theme = "furo"
html_title = f"repopt {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_exclude = ".linenos, .gp, .go"

myst_heading_anchors = 3  # as GitHub makes them
suppress_warnings = ["myst.header"]  # the headings of a page may start at any level

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_type_aliases = {
    "Branches": "Mapping[str, Sequence[Branch]]",
    "Chooser": "Callable",
    "ScalesLike": "Scales | Mapping | str | Path",
}
TypeAliasForwardRef.__repr__ = lambda self: self.name  # in a union, too
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
default_role = "code"  # `name` in a docstring, as in Markdown
# types of other libraries, and of repopt's own inside, which have no page here
nitpick_ignore_regex = [("py:.*", r"(?!repopt\.\w+$).*")]

# files outside of docs/ that have a page of their own here
_PAGES = {"../CONTRIBUTING.md": "contributing.md", "../CHANGELOG.md": "changelog.md"}


def _link_to_pages(app: Sphinx, name: str, source: list[str]) -> None:
    for file, page in _PAGES.items():
        source[0] = re.sub(rf"\]\({re.escape(file)}", f"]({page}", source[0])


def _link_to_names(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """In a docstring `attach` and `repopt.attach` are links."""
    public = "|".join(repopt.__all__)
    for index, line in enumerate(lines):
        lines[index] = re.sub(rf"(?<!`)`(?:repopt\.)?({public})`", r":py:obj:`~repopt.\1`", line)


def setup(app: Sphinx) -> None:
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"  # as the docstrings say
    app.connect("autodoc-process-docstring", _link_to_names)
    app.connect("source-read", _link_to_pages)
