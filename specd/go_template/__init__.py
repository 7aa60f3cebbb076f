"""Go's text/template, as far as Ollama's models use it, and an analysis of templates.

`parse` and `Template.render` run templates; `analysis` finds what a template supports.
"""

from specd.go_template import nodes
from specd.go_template.budget import Budget
from specd.go_template.template import Template, check_template, parse
from specd.go_template.values import Struct

__all__ = ["Budget", "Struct", "Template", "check_template", "nodes", "parse"]
